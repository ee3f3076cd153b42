/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * reachability.h - blocks that are lost or not, and what two other tools say of the same ones.
 *
 * A block is known by its size, of which there are several only where the ledger says so. The ledger has, for
 * each size, how many blocks are of which kind: "direct_1009": 1. The kinds are memcheck's.
 *
 * At the end of a step memcheck or LeakSanitizer is asked too, if the program runs under it: their reports go
 * to stderr, of the very moment at which the step ends.
 */
#ifndef BPFLEAKD_REACHABILITY_H
#define BPFLEAKD_REACHABILITY_H

#include "workload.h"

#include <valgrind/memcheck.h>

#ifdef __cplusplus
extern "C"
#endif
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

#define DIRECT(size, count) workload_note("direct_" #size, count)
#define INDIRECT(size, count) workload_note("indirect_" #size, count)
#define POSSIBLE(size, count) workload_note("possible_" #size, count)
#define REACHABLE(size, count) workload_note("reachable_" #size, count)

/* Overwrites what calls have left on the stack, and the registers that calls may overwrite. */
__attribute__((noipa, unused)) static void scrub(void)
{
	volatile char stack[16384];

	for (size_t i = 0; i < sizeof(stack); i++)
		stack[i] = 0;
#ifdef __AVX__
	__asm__ volatile("vzeroall" ::: "memory");
#endif
}

__attribute__((noipa, unused)) static void ask_the_others(void)
{
	scrub();
	if (RUNNING_ON_VALGRIND)
		VALGRIND_DO_LEAK_CHECK;
	if (__lsan_do_recoverable_leak_check)
		__lsan_do_recoverable_leak_check();
}

#endif
