// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * fragmented - memory that is freed and kept by glibc; run N does one of these, in the main thread and in three
 * others at once, each in an arena of its own:
 *
 *     run 1   BLOCKS blocks each, of which all but every tenth are freed again; a large block with a mapping of
 *             its own stays, too.
 *     run 2   malloc_trim(3).
 *
 * Notes, from mallinfo2(3) after each: arena_bytes and free_bytes of all arenas, mapped_bytes of large blocks.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <malloc.h>

enum { THREADS = 3, BLOCKS = 15000, KEPT_EVERY = 10, LARGE_BYTES = 3 << 20 };

static struct site site_fragment = {.function = "fragment"};
static void *kept[THREADS + 1][BLOCKS];
static void *large;

SITE_FUNCTION static void fragment(int thread)
{
	void **blocks = kept[thread];

	for (int i = 0; i < BLOCKS; i++) {
		size_t size = 600 + (size_t)i * 7 % 3000;

		blocks[i] = malloc(size);
		if (!blocks[i])
			WORKLOAD_FATAL("no memory for %zu bytes", size);
		memset(blocks[i], 1, size);
		site_allocated(&site_fragment, 1, (long)size);
	}
	for (int i = 0; i < BLOCKS; i++) {
		if (i % KEPT_EVERY == 0)
			continue;
		free(blocks[i]);
		site_freed(&site_fragment, 1, 600 + (long)i * 7 % 3000);
	}
}

static void body(int thread)
{
	fragment(thread);
}

static void step(long number)
{
	struct mallinfo2 info;

	switch (number) {
	case 1:
		workload_run_threads();
		fragment(THREADS);
		large = malloc(LARGE_BYTES);
		KEEP(large);
		memset(large, 1, LARGE_BYTES);
		break;
	case 2:
		malloc_trim(0);
		break;
	default:
		WORKLOAD_FATAL("run 1 or 2, not %ld", number);
	}
	info = mallinfo2();
	workload_note("arena_bytes", (double)info.arena);
	workload_note("free_bytes", (double)(info.fordblks + info.fsmblks));
	workload_note("mapped_bytes", (double)info.hblkhd);
}

int main(void)
{
	workload_start_threads(THREADS, body);
	return workload_serve(step);
}
