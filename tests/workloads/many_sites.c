// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * many_sites - many distinct call stacks, many live blocks.
 *
 *     many_sites [STACKS [BLOCKS [SIZE]]]               run N: N further blocks, spread over all stacks
 *
 * The stack of number n is its path in call_paths.h, to the one function that allocates, allocate_at_leaf(). All
 * blocks stay live.
 *
 * Note: distinct_stacks.
 */
#define _GNU_SOURCE
#include "call_paths.h"

static long stacks, blocks, size;
static int bits;
static struct site site_leaf = {.function = "allocate_at_leaf"};

SITE_FUNCTION static void allocate_at_leaf(void)
{
	void *address = malloc((size_t)size);

	if (!address)
		WORKLOAD_FATAL("no memory");
	KEEP(address);
}

static void step(long number)
{
	long count = number > 0 ? number : blocks;

	for (long i = 0; i < count; i++)
		left(i % stacks, bits);
	site_allocated(&site_leaf, count, count * size);
	workload_note("distinct_stacks", (double)(stacks < count ? stacks : count));
}

int main(int argc, char **argv)
{
	stacks = workload_argument(argc, argv, 1, 1000);
	blocks = workload_argument(argc, argv, 2, stacks * 23);
	size = workload_argument(argc, argv, 3, 101);
	bits = bits_of(stacks);
	return workload_serve(step);
}
