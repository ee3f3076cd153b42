// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * bloated - a large heap of glibc's, half of it freed and kept, of which little is in memory.
 *
 *     bloated         run N: N blocks of 60,000 bytes, every second freed again; and as many small ones likewise
 *
 * Only the pages with the allocator's own words are touched.
 */
#define _GNU_SOURCE
#include "workload.h"

#define LARGE_BYTES 60000
#define SMALL_BYTES 1500

static void allocate(long count, size_t size)
{
	void **blocks = calloc((size_t)count, sizeof(void *));

	if (!blocks)
		WORKLOAD_FATAL("no memory");
	for (long i = 0; i < count; i++) {
		blocks[i] = malloc(size);
		if (!blocks[i])
			WORKLOAD_FATAL("no memory for block %ld", i);
	}
	for (long i = 0; i < count; i += 2)
		free(blocks[i]);
	KEEP(blocks);
}

static void step(long count)
{
	allocate(count, LARGE_BYTES);
	allocate(count, SMALL_BYTES);
}

int main(void)
{
	return workload_serve(step);
}
