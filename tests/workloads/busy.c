// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * busy - allocates and frees, maps and unmaps all the time, in a thread of its own, until it is told to stop.
 *
 *     run 1   the thread begins, and the answer comes at once: the ledger is of what was done before
 *     run 0   it ends; the ledger says what it left
 *
 * Half of the blocks are freed later, some are resized, some leak; the same with mappings.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096L

enum { KEPT = 1009, MAPPED = 101 };

static struct site site_block = {.function = "make_block"};
static struct site site_resize = {.function = "resize_block"};
static struct site site_map = {.function = "map_pages"};
static struct site site_grow = {.function = "grow_mapping"};

static struct {
	char *address;
	long size;
	struct site *site;
} blocks[KEPT];
static struct {
	char *address;
	long first_pages, grown_pages;
} mappings[MAPPED];
static atomic_int wanted, under_way;
static pthread_t thread;
static unsigned int seed = 23;

static long number(long limit)
{
	return (long)(rand_r(&seed) % (unsigned int)limit);
}

SITE_FUNCTION static void make_block(int index)
{
	long size = 1 + number(3000);

	blocks[index].address = malloc((size_t)size);
	KEEP(blocks[index].address);
	blocks[index].size = size;
	blocks[index].site = &site_block;
	site_allocated(&site_block, 1, size);
}

SITE_FUNCTION static void resize_block(int index)
{
	long size = 1 + number(9000);

	blocks[index].address = realloc(blocks[index].address, (size_t)size);
	KEEP(blocks[index].address);
	site_freed(blocks[index].site, 1, blocks[index].size);
	blocks[index].size = size;
	blocks[index].site = &site_resize;
	site_allocated(&site_resize, 1, size);
}

static void drop_block(int index)
{
	free(blocks[index].address);
	site_freed(blocks[index].site, 1, blocks[index].size);
	blocks[index].address = NULL;
}

SITE_FUNCTION static void map_pages(int index)
{
	long pages = 1 + number(50);
	char *address = mmap(NULL, (size_t)(pages * PAGE), PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (address == MAP_FAILED)
		WORKLOAD_FATAL("mmap failed");
	mappings[index].address = address;
	mappings[index].first_pages = pages;
	mappings[index].grown_pages = 0;
	site_allocated(&site_map, 1, pages * PAGE);
}

/* The rest belongs to the caller. */
SITE_FUNCTION static void grow_mapping(int index)
{
	long pages = 1 + number(50);
	long old = mappings[index].first_pages;
	char *address = mremap(mappings[index].address, (size_t)(old * PAGE), (size_t)((old + pages) * PAGE),
			       MREMAP_MAYMOVE);

	if (address == MAP_FAILED)
		WORKLOAD_FATAL("mremap failed");
	mappings[index].address = address;
	mappings[index].grown_pages = pages;
	site_allocated(&site_grow, 1, pages * PAGE);
}

static void unmap(int index)
{
	munmap(mappings[index].address,
	       (size_t)((mappings[index].first_pages + mappings[index].grown_pages) * PAGE));
	site_freed(&site_map, 1, mappings[index].first_pages * PAGE);
	if (mappings[index].grown_pages)
		site_freed(&site_grow, 1, mappings[index].grown_pages * PAGE);
	mappings[index].address = NULL;
}

static void *work(void *unused)
{
	(void)unused;
	for (long round = 0; atomic_load(&wanted); round++) {
		int block = (int)number(KEPT), mapping = (int)number(MAPPED);

		if (!blocks[block].address)
			make_block(block);
		else if (number(3) == 0)
			resize_block(block);
		else
			drop_block(block);
		/* Few enough for the ring of their events while a slow machine starts a daemon. */
		if (round % 80 == 0) {
			struct timespec pause = {.tv_nsec = 8000000};

			if (!mappings[mapping].address)
				map_pages(mapping);
			else if (!mappings[mapping].grown_pages && number(2))
				grow_mapping(mapping);
			else
				unmap(mapping);
			nanosleep(&pause, NULL);
		}
	}
	atomic_store(&under_way, 0);
	return NULL;
}

/* The thread exists before "ready", because creating it allocates. */
static void *begin(void *unused)
{
	struct timespec pause = {.tv_nsec = 1000000};

	while (!atomic_load(&wanted))
		nanosleep(&pause, NULL);
	return work(unused);
}

static void step(long on)
{
	struct timespec pause = {.tv_nsec = 1000000};

	if (on) {
		atomic_store(&under_way, 1);
		atomic_store(&wanted, 1);
		return;
	}
	atomic_store(&wanted, 0);
	while (atomic_load(&under_way))
		nanosleep(&pause, NULL);
}

int main(void)
{
	workload_thread_count = 1;
	if (pthread_create(&thread, NULL, begin, NULL))
		WORKLOAD_FATAL("pthread_create failed");
	return workload_serve(step);
}
