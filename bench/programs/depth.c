// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * depth - malloc and free in a loop, below a chain of calls.
 *
 *     depth CALLS [PAIRS]                               run N: N pairs
 *
 * The chain is entered once a step, so that only its being there costs: CALLS calls of descend() between
 * main() and the loop. Nothing stays live.
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

static void step(long number)
{
	long count = number > 0 ? number : pairs;

	if (calls > 0)
		descend(calls - 1, count);
	else
		loop(count);
	site_allocated(&site_loop, count, count * 64);
	site_freed(&site_loop, count, count * 64);
}

int main(int argc, char **argv)
{
	calls = workload_argument(argc, argv, 1, 0);
	pairs = workload_argument(argc, argv, 2, 100000);
	return workload_serve(step);
}
