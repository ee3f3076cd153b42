// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * arena_growth - two threads keep `run N` blocks of 1,000 bytes each: glibc's arenas grow by a page at a time.
 */
#define _GNU_SOURCE
#include "workload.h"

enum { THREADS = 2, BLOCK_BYTES = 1000 };

static long blocks;
static struct site site_keep = {.function = "keep"};

SITE_FUNCTION static void keep(void)
{
	void *block = malloc(BLOCK_BYTES);

	KEEP(block);
	NO_TAIL_CALL();
}

static void body(int thread)
{
	(void)thread;
	for (long i = 0; i < blocks; i++)
		keep();
	site_allocated(&site_keep, blocks, blocks * BLOCK_BYTES);
}

static void step(long number)
{
	blocks = number;
	workload_run_threads();
}

int main(void)
{
	workload_start_threads(THREADS, body);
	return workload_serve(step);
}
