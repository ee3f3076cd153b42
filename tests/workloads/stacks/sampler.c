// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * sampler - to be preloaded: takes samples in the middle of other people's programs.
 *
 * It stands in front of the C library's malloc, calloc and realloc. A debugger sets `sampler_gap` to N and
 * gets a sample at about every Nth call (pseudo-randomly, so that no rhythm of the program hides a path).
 * One thread is sampled at a time: when a debugger sees one and sets `sampler_gap` to 0, no other follows.
 */
#include <sched.h>

#include "sample.h"

extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *block, size_t size);

volatile int sampler_gap;

static int countdown;
static int is_taking;
static unsigned random_state = 23;

DEFINE_TAKE_SAMPLE

static int next_gap(void)
{
	random_state = random_state * 1664525 + 1013904223;
	return 1 + (int)((random_state >> 8) % (unsigned)(2 * sampler_gap));
}

static void maybe_take_sample(void)
{
	if (!sampler_gap || __atomic_sub_fetch(&countdown, 1, __ATOMIC_RELAXED) > 0)
		return;
	while (__atomic_exchange_n(&is_taking, 1, __ATOMIC_ACQUIRE))
		sched_yield();
	if (sampler_gap && __atomic_load_n(&countdown, __ATOMIC_RELAXED) <= 0) {
		__atomic_store_n(&countdown, next_gap(), __ATOMIC_RELAXED);
		take_sample();
	}
	__atomic_store_n(&is_taking, 0, __ATOMIC_RELEASE);
}

void *malloc(size_t size)
{
	maybe_take_sample();
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	maybe_take_sample();
	return __libc_calloc(count, size);
}

void *realloc(void *block, size_t size)
{
	maybe_take_sample();
	return __libc_realloc(block, size);
}
