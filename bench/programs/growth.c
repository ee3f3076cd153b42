// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * growth - many live blocks, from many call stacks, or a deep one; and pairs beside them.
 *
 *     growth STACKS CALLS                               run N: N further blocks, spread over all stacks
 *                                                       run -N: N pairs, spread likewise
 *
 * The stack of number n is CALLS calls of left() and right(), by the bits of n. Blocks are of 16 bytes and stay live.
 */
#define _GNU_SOURCE
#include "workload.h"

static long stacks, calls, next;
static int is_pair;
static struct site site_leaf = {.function = "allocate_at_leaf"};

static void right(unsigned long path, long further);

SITE_FUNCTION static void allocate_at_leaf(void)
{
	void *address = malloc(16);

	if (!address)
		WORKLOAD_FATAL("no memory");
	KEEP(address);
	if (is_pair)
		free(address);
}

SITE_FUNCTION static void left(unsigned long path, long further)
{
	if (further == 0)
		allocate_at_leaf();
	else if (path & 1)
		right(path >> 1, further - 1);
	else
		left(path >> 1, further - 1);
	NO_TAIL_CALL();
}

SITE_FUNCTION static void right(unsigned long path, long further)
{
	if (further == 0)
		allocate_at_leaf();
	else if (path & 1)
		right(path >> 1, further - 1);
	else
		left(path >> 1, further - 1);
	NO_TAIL_CALL();
}

static void step(long number)
{
	long count = number < 0 ? -number : number;

	is_pair = number < 0;
	for (long i = 0; i < count; i++, next++)
		if (calls > 0)
			left((unsigned long)(next % stacks), calls - 1);
		else
			allocate_at_leaf();
	site_allocated(&site_leaf, count, count * 16);
	if (is_pair)
		site_freed(&site_leaf, count, count * 16);
}

int main(int argc, char **argv)
{
	stacks = workload_argument(argc, argv, 1, 1);
	calls = workload_argument(argc, argv, 2, 0);
	return workload_serve(step);
}
