// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * depth - malloc and free in a loop, below a chain of calls.
 *
 *     depth CALLS [THREADS]                             run N: N pairs, of each thread
 *
 * The chain is entered once a step, so that only its being there costs: CALLS calls of descend() between
 * the loop and main(), or what a thread begins with. Nothing stays live.
 */
#define _GNU_SOURCE
#include "workload.h"

static long calls, pairs;
static struct site site_loop = {.function = "loop"};

SITE_FUNCTION static void loop(long count)
{
	for (long i = 0; i < count; i++) {
		void *address = malloc(64);

		KEEP(address);
		free(address);
	}
}

SITE_FUNCTION static void descend(long further, long count)
{
	if (further > 0)
		descend(further - 1, count);
	else
		loop(count);
	NO_TAIL_CALL();
}

/* Has no frame, neither in a thread nor in main(). */
__attribute__((always_inline)) static inline void enter(void)
{
	if (calls > 0)
		descend(calls - 1, pairs);
	else
		loop(pairs);
	site_allocated(&site_loop, pairs, pairs * 64);
	site_freed(&site_loop, pairs, pairs * 64);
}

static void body(int thread)
{
	(void)thread;
	enter();
}

static void step(long number)
{
	pairs = number;
	if (workload_thread_body)
		workload_run_threads();
	else
		enter();
}

int main(int argc, char **argv)
{
	int threads = (int)workload_argument(argc, argv, 2, 0);

	calls = workload_argument(argc, argv, 1, 0);
	if (threads)
		workload_start_threads(threads, body);
	return workload_serve(step);
}
