// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * sampling - many call stacks that all do the same: as many samples of one estimate.
 *
 *     sampling FUNCTION STACKS SIZE...                  run N: at each stack N blocks of each SIZE
 *
 * FUNCTION is malloc, calloc, realloc (of nothing: glibc's hands on to its malloc), memalign (of an alignment
 * for which glibc's does likewise) or posix_memalign. After each step every second block of it is freed, and
 * "run -1" frees all that is left.
 *
 * The stack of number n is a path of calls to left() and right(), one for each bit of n.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <malloc.h>
#include <sys/mman.h>

#define MAX_BLOCKS (16L << 20)
#define MAX_SIZES 16

static struct site site_leaf = {.function = "allocate_at_leaf"};
static const char *function;
static long stacks, sizes[MAX_SIZES], size_count, count;
static int bits;
/* The stacks of these blocks do not matter: each has as many of each size, freed or not. */
static struct block *blocks;

static void right(long path, int depth, long size);

SITE_FUNCTION static void allocate_at_leaf(long size)
{
	void *address = NULL;

	switch (function[0]) {
	case 'm':
		address = function[1] == 'a' ? malloc((size_t)size) : memalign(16, (size_t)size);
		break;
	case 'c':
		address = calloc(1, (size_t)size);
		break;
	case 'r':
		address = realloc(NULL, (size_t)size);
		break;
	case 'p':
		if (posix_memalign(&address, 64, (size_t)size))
			WORKLOAD_FATAL("no memory");
		break;
	}
	KEEP(address);
	if (count == MAX_BLOCKS)
		WORKLOAD_FATAL("too many blocks");
	blocks[count++] = block_allocated(&site_leaf, address, (size_t)size);
}

SITE_FUNCTION static void left(long path, int depth, long size)
{
	if (depth == 0)
		allocate_at_leaf(size);
	else if (path & 1)
		right(path >> 1, depth - 1, size);
	else
		left(path >> 1, depth - 1, size);
	NO_TAIL_CALL();
}

SITE_FUNCTION static void right(long path, int depth, long size)
{
	if (depth == 0)
		allocate_at_leaf(size);
	else if (path & 1)
		right(path >> 1, depth - 1, size);
	else
		left(path >> 1, depth - 1, size);
	NO_TAIL_CALL();
}

static void give_back(struct block *block)
{
	void *address = block->address;

	if (address) {
		block_freed(block);
		free(address);
	}
}

static void step(long number)
{
	long first = count;

	if (number < 0)
		for (long i = 0; i < count; i++)
			give_back(&blocks[i]);
	for (long round = 0; round < number; round++)
		for (long kind = 0; kind < size_count; kind++)
			for (long path = 0; path < stacks; path++)
				left(path, bits, sizes[kind]);
	/* A round has as many blocks as there are stacks and sizes: all blocks of every second round are freed. */
	for (long i = first; i < count; i++)
		if ((i - first) / (stacks * size_count) % 2)
			give_back(&blocks[i]);
}

int main(int argc, char **argv)
{
	function = argc > 1 ? argv[1] : "malloc";
	stacks = workload_argument(argc, argv, 2, 1);
	for (size_count = 0; size_count < MAX_SIZES && 3 + size_count < argc; size_count++)
		sizes[size_count] = workload_argument(argc, argv, 3 + (int)size_count, 0);
	while ((1L << bits) < stacks)
		bits++;
	blocks = mmap(NULL, MAX_BLOCKS * sizeof(*blocks), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (blocks == MAP_FAILED)
		WORKLOAD_FATAL("no memory");
	return workload_serve(step);
}
