/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * sample.h - a stack that two can look at: the daemon when the block is allocated, a debugger right behind.
 *
 * From the allocation to the trap nothing is called and nothing returns, so that both see the same callers.
 * Without a debugger the trap ends the program.
 */
#ifndef BPFLEAKD_SAMPLE_H
#define BPFLEAKD_SAMPLE_H

#include <stddef.h>

enum { SAMPLE_BYTES = 23 };

extern void *__libc_malloc(size_t size);

/* The function to look for in stacks: frames above it are not compared. */
__attribute__((noipa)) void take_sample(void);

#define DEFINE_TAKE_SAMPLE                                                                   \
	void take_sample(void)                                                               \
	{                                                                                    \
		__asm__ volatile("" : : "r"(__libc_malloc(SAMPLE_BYTES)) : "memory");        \
		__asm__ volatile("int3" : : : "memory");                                     \
	}

#endif
