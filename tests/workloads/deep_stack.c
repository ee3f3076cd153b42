// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * deep_stack DEPTH: `run N` leaks N blocks of 101 bytes, each below DEPTH calls of descend().
 *
 * The frame pointer is used for other things, so that only call frame information leads to the callers.
 */
#include "workload.h"

static long depth;
static struct site site_leak = {.function = "leak_at_the_bottom"};

SITE_FUNCTION __attribute__((optimize("omit-frame-pointer"))) static void leak_at_the_bottom(void)
{
	void *block = malloc(101);

	KEEP(block);
	site_allocated(&site_leak, 1, 101);
}

SITE_FUNCTION __attribute__((optimize("omit-frame-pointer"))) static void descend(long calls)
{
	if (calls > 1)
		descend(calls - 1);
	else
		leak_at_the_bottom();
	NO_TAIL_CALL();
}

static void step(long number)
{
	for (long i = 0; i < number; i++)
		descend(depth);
}

int main(int argc, char **argv)
{
	depth = workload_argument(argc, argv, 1, 5);
	return workload_serve(step);
}
