// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * heap_end - `run N` keeps N blocks. malloc moves the end of the heap for each of them, up and down, and the program
 * does so itself for every hundredth one.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <malloc.h>

enum { BLOCK_BYTES = 5000, PASSING_BYTES = 50000, OWN_BYTES = 3 * 4096, BLOCKS_PER_OWN = 100 };

static struct site site_keep = {.function = "keep"};
static struct site site_pass = {.function = "pass"};
static struct site site_extend = {.function = "extend"};

SITE_FUNCTION static void keep(void)
{
	void *block = malloc(BLOCK_BYTES);

	memset(block, 1, BLOCK_BYTES);
	KEEP(block);
	site_allocated(&site_keep, 1, BLOCK_BYTES);
}

SITE_FUNCTION static void pass(void)
{
	void *block = malloc(PASSING_BYTES);

	KEEP(block);
	site_allocated(&site_pass, 1, PASSING_BYTES);
	free(block);
	site_freed(&site_pass, 1, PASSING_BYTES);
}

SITE_FUNCTION static void extend(void)
{
	if (sbrk(OWN_BYTES) == (void *)-1)
		WORKLOAD_FATAL("no memory for %d bytes", OWN_BYTES);
	site_allocated(&site_extend, 1, OWN_BYTES);
}

static void step(long number)
{
	for (long i = 1; i <= number; i++) {
		keep();
		pass();
		if (i % BLOCKS_PER_OWN == 0)
			extend();
	}
}

int main(void)
{
	mallopt(M_TOP_PAD, 0);
	mallopt(M_TRIM_THRESHOLD, 0);
	return workload_serve(step);
}
