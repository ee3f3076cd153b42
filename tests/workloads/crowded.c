// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * crowded - blocks of many sizes, most of them freed again, so that free chunks of nearly all sizes are left;
 * run 1 does it in the main thread and in two others, whose arenas have several heaps.
 *
 * Then BLOCKS large blocks in huge pages, if there are some: they have mappings of their own, which that cuts.
 * Notes, from mallinfo2(3): arena_bytes and free_bytes of all arenas; large_bytes: what was written of these.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <malloc.h>
#include <sys/mman.h>

enum { THREADS = 2, BLOCKS = 50000, ROUNDS = 3, KEPT_EVERY = 10, LARGE = 4, HUGE = 2 << 20 };

static void *blocks[THREADS + 1][BLOCKS];

static unsigned int next(unsigned int *state)
{
	*state = *state * 1103515245u + 12345u;
	return *state >> 8;
}

static void crowd(int thread)
{
	unsigned int state = (unsigned int)thread + 1;

	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < BLOCKS; i++) {
			size_t size = 16 + next(&state) % 3000;

			if (blocks[thread][i])
				continue;
			blocks[thread][i] = malloc(size);
			if (!blocks[thread][i])
				WORKLOAD_FATAL("no memory for %zu bytes", size);
			memset(blocks[thread][i], 1, size);
		}
		for (int i = 0; i < BLOCKS; i++) {
			if (next(&state) % KEPT_EVERY == 0)
				continue;
			free(blocks[thread][i]);
			blocks[thread][i] = NULL;
		}
	}
}

static void step(long number)
{
	struct mallinfo2 info;

	if (number != 1)
		WORKLOAD_FATAL("run 1, not %ld", number);
	workload_run_threads();
	crowd(THREADS);
	for (int i = 0; i < LARGE; i++) {
		char *large = aligned_alloc(HUGE, 4 * HUGE);

		KEEP(large);
		madvise(large, 4 * HUGE, MADV_HUGEPAGE);
		memset(large, 1, 4 * HUGE);
	}
	info = mallinfo2();
	workload_note("arena_bytes", (double)info.arena);
	workload_note("free_bytes", (double)(info.fordblks + info.fsmblks));
	workload_note("large_bytes", (double)LARGE * 4 * HUGE);
}

int main(void)
{
	workload_start_threads(THREADS, crowd);
	return workload_serve(step);
}
