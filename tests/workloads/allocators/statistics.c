// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * statistics - what an allocator maps for itself, beside what a program maps; and what it says of that.
 *
 *     statistics [THREADS]
 *
 * Every thread keeps blocks of all sizes: in its arena, and so large that they get mappings of their own,
 * which realloc moves. It maps memory itself, too, in keep_mappings().
 *
 * Notes: allocator_bytes, what has become outstanding since the first step began, as the allocator says it:
 * mallinfo2 of glibc, or "stats.allocated" where jemalloc is there. Both round up.
 */
#define _GNU_SOURCE
#include "../workload.h"

#include <malloc.h>
#include <sys/mman.h>

enum { KEPT = 23, FREED = 101, PAGE = 4096, MIB = 1 << 20 };

int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size)
	__attribute__((weak));

static struct site site_small = {.function = "keep_small"};
static struct site site_large = {.function = "keep_large"};
static struct site site_grow = {.function = "grow_large"};
static struct site site_turn_over = {.function = "turn_over"};
static struct site site_map = {.function = "keep_mappings"};

SITE_FUNCTION static void keep_small(size_t size)
{
	KEEP(block_allocated(&site_small, malloc(size), size).address);
}

SITE_FUNCTION static struct block keep_large(size_t size)
{
	return block_allocated(&site_large, malloc(size), size);
}

SITE_FUNCTION static void grow_large(struct block old, size_t size)
{
	void *address = realloc(old.address, size);

	block_freed(&old);
	KEEP(block_allocated(&site_grow, address, size).address);
}

SITE_FUNCTION static void turn_over(size_t size)
{
	struct block block = block_allocated(&site_turn_over, malloc(size), size);

	KEEP(block.address);
	free(block.address);
	block_freed(&block);
}

SITE_FUNCTION static void keep_mappings(long pages)
{
	void *address = mmap(NULL, (size_t)(pages * PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			     0);

	if (address == MAP_FAILED)
		WORKLOAD_FATAL("mmap failed");
	site_allocated(&site_map, 1, pages * PAGE);
}

static void body(int thread)
{
	for (int i = 0; i < KEPT; i++) {
		keep_small(101 + (size_t)i);
		keep_small(20011);
		keep_small(80021 + (size_t)thread);
		keep_mappings(7 + i);
	}
	for (int i = 0; i < 7; i++) {
		keep_large(MIB + 5);
		grow_large(keep_large(3 * MIB), 5 * MIB + 1);
		grow_large(keep_large(5 * MIB), 2 * MIB);
	}
	for (int i = 0; i < FREED; i++)
		turn_over(i % 2 ? 53 : 3 * MIB);
}

static double allocator_bytes(void)
{
	uint64_t epoch = 1;
	size_t bytes = 0, size = sizeof(bytes), epoch_size = sizeof(epoch);

	if (!mallctl) {
		struct mallinfo2 info = mallinfo2();

		return (double)(info.uordblks + info.hblkhd);
	}
	if (mallctl("epoch", &epoch, &epoch_size, &epoch, epoch_size) ||
	    mallctl("stats.allocated", &bytes, &size, NULL, 0))
		WORKLOAD_FATAL("jemalloc gives no statistics");
	return (double)bytes;
}

static void step(long number)
{
	static double before;

	(void)number;
	if (!before)
		before = allocator_bytes();
	workload_run_threads();
	workload_note("allocator_bytes", allocator_bytes() - before);
}

int main(int argc, char **argv)
{
	workload_start_threads((int)workload_argument(argc, argv, 1, 3), body);
	return workload_serve(step);
}
