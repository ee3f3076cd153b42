// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * linked - blocks that point to one another, every tenth of them lost.
 *
 *     linked          run N: N blocks of 1000 bytes, which are written to from end to end
 *
 * Each block that is not lost is pointed to by the one before it, and points to two others.
 */
#define _GNU_SOURCE
#include "workload.h"

#define BLOCK_WORDS 125

static struct site site_new_block = {.function = "new_block"};
void **first;

SITE_FUNCTION static void **new_block(void)
{
	void **block = malloc(BLOCK_WORDS * sizeof(void *));

	if (!block)
		WORKLOAD_FATAL("no memory");
	memset(block, 1, BLOCK_WORDS * sizeof(void *));
	site_allocated(&site_new_block, 1, BLOCK_WORDS * sizeof(void *));
	return block;
}

static void step(long count)
{
	void **last = NULL;

	for (long i = 0; i < count; i++) {
		void **block = new_block();

		if (i % 10 == 9)
			continue;
		block[0] = last;
		block[50] = last ? last[0] : NULL;
		last = block;
	}
	first = last;
}

int main(void) { return workload_serve(step); }
