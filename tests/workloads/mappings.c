// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * mappings: each `run` changes the address space in every way once, in named functions.
 *
 * The ledger's live_bytes and live_count leave out what maps a file, as bpfleakd's totals do. A site's
 * allocated_* count every mapping (for commits: every mprotect that opened something up).
 */
#define _GNU_SOURCE
#include "workload.h"

#include <fcntl.h>
#include <sys/mman.h>

#define PAGE 4096L
#define MIB (1L << 20)

static struct site site_keep = {.function = "keep_mappings"};
static struct site site_holes = {.function = "punch_holes"};
static struct site site_fixed = {.function = "replace_the_middle"};
static struct site site_replaced = {.function = "map_to_be_replaced"};
static struct site site_grow = {.function = "grow_by_mremap"};
static struct site site_to_grow = {.function = "map_to_grow"};
static struct site site_commit = {.function = "commit_pieces"};
static struct site site_gone = {.function = "map_and_unmap"};
static struct site site_heap = {.function = "keep_large_blocks"};

/* A macro, so that the function that uses it is blamed. */
#define map(bytes, protection, flags)                                                             \
	({                                                                                        \
		void *mapped = mmap(NULL, (size_t)(bytes), (protection),                          \
				    MAP_PRIVATE | MAP_ANONYMOUS | (flags), -1, 0);                \
		if (mapped == MAP_FAILED)                                                         \
			WORKLOAD_FATAL("mmap of %ld bytes failed", (long)(bytes));                \
		mapped;                                                                           \
	})

/* 23 mappings whose length is not a whole number of pages. */
SITE_FUNCTION static void keep_mappings(void)
{
	for (int i = 0; i < 23; i++) {
		KEEP(map(101 * PAGE - 5, PROT_READ | PROT_WRITE, 0));
		site_allocated(&site_keep, 1, 101 * PAGE);
	}
}

/* The middle and the end of one mapping are unmapped; it stays one. */
SITE_FUNCTION static void punch_holes(void)
{
	char *address = map(100 * PAGE, PROT_READ | PROT_WRITE, 0);

	site_allocated(&site_holes, 1, 100 * PAGE);
	munmap(address + 10 * PAGE, 7 * PAGE);
	munmap(address + 90 * PAGE, 10 * PAGE);
	site_freed(&site_holes, 0, 17 * PAGE);
}

SITE_FUNCTION static char *map_to_be_replaced(void)
{
	char *address = map(50 * PAGE, PROT_READ | PROT_WRITE, 0);

	site_allocated(&site_replaced, 1, 50 * PAGE);
	return address;
}

SITE_FUNCTION static void replace_the_middle(void)
{
	char *address = map_to_be_replaced();

	mmap(address + 20 * PAGE, 11 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
	     0);
	site_freed(&site_replaced, 0, 11 * PAGE);
	site_allocated(&site_fixed, 1, 11 * PAGE);
}

SITE_FUNCTION static char *map_to_grow(void)
{
	char *address = map(10 * PAGE, PROT_READ | PROT_WRITE, 0);

	site_allocated(&site_to_grow, 1, 10 * PAGE);
	return address;
}

/* mremap moves the bytes with their owner; only the growth belongs to its caller. Then it shrinks again. */
SITE_FUNCTION static void grow_by_mremap(void)
{
	char *address = map_to_grow();
	char *grown = mremap(address, 10 * PAGE, 4000 * PAGE, MREMAP_MAYMOVE);

	if (grown == MAP_FAILED)
		WORKLOAD_FATAL("mremap failed");
	site_allocated(&site_grow, 1, 3990 * PAGE);
	if (mremap(grown, 4000 * PAGE, 13 * PAGE, 0) != grown)
		WORKLOAD_FATAL("mremap did not shrink in place");
	site_freed(&site_grow, 0, 3987 * PAGE);
	/* Fails, and changes nothing: there is no room anywhere. */
	if (mremap(grown, 13 * PAGE, 1UL << 50, MREMAP_MAYMOVE) != MAP_FAILED)
		WORKLOAD_FATAL("mremap to a petabyte succeeded");
}

/* A reservation has no owner; committed parts belong to the committing function, until they are returned. */
SITE_FUNCTION static void commit_pieces(void)
{
	char *reserved = map(1024 * MIB, PROT_NONE, MAP_NORESERVE);

	for (int i = 0; i < 7; i++) {
		mprotect(reserved + 2 * i * MIB, MIB, PROT_READ | PROT_WRITE);
		site_allocated(&site_commit, 1, MIB);
	}
	/* Accessible already: the owner stays. */
	mprotect(reserved, MIB, PROT_READ);
	mprotect(reserved, MIB, PROT_READ | PROT_WRITE);
	/* Returned in both ways, two whole pieces and half of one. */
	madvise(reserved, MIB, MADV_DONTNEED);
	mprotect(reserved + 2 * MIB, MIB, PROT_NONE);
	mprotect(reserved + 4 * MIB, MIB / 2, PROT_NONE);
	site_freed(&site_commit, 2, 2 * MIB + MIB / 2);
}

/* mprotect over a hole fails, but has already protected the memory before the hole. */
static struct site site_partly = {.function = "protect_over_a_hole"};

SITE_FUNCTION static void protect_over_a_hole(void)
{
	char *address = map(30 * PAGE, PROT_READ | PROT_WRITE, 0);

	site_allocated(&site_partly, 1, 30 * PAGE);
	munmap(address + 10 * PAGE, 10 * PAGE);
	site_freed(&site_partly, 0, 10 * PAGE);
	if (mprotect(address, 30 * PAGE, PROT_NONE) == 0)
		WORKLOAD_FATAL("mprotect over a hole succeeded");
	site_freed(&site_partly, 0, 10 * PAGE);
}

SITE_FUNCTION static void fail_to_map(void)
{
	void *address = mmap(NULL, 1UL << 60, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (address != MAP_FAILED)
		WORKLOAD_FATAL("mmap of an exabyte succeeded");
	munmap((void *)1, PAGE);
	munmap(NULL, 0);
	NO_TAIL_CALL();
}

SITE_FUNCTION static void map_and_unmap(void)
{
	for (int i = 0; i < 101; i++) {
		char *address = map(3 * PAGE, PROT_READ | PROT_WRITE, 0);

		munmap(address, 3 * PAGE);
	}
	site_allocated(&site_gone, 101, 303 * PAGE);
	site_freed(&site_gone, 101, 303 * PAGE);
}

/* malloc maps these itself: they are only heap blocks. */
SITE_FUNCTION static void keep_large_blocks(void)
{
	for (int i = 0; i < 5; i++) {
		char *block = malloc(3 * MIB);

		block = realloc(block, 7 * MIB);
		KEEP(block);
		site_allocated(&site_heap, 2, 10 * MIB);
		site_freed(&site_heap, 1, 3 * MIB);
	}
}

SITE_FUNCTION static void map_file(void)
{
	int fd = open("/proc/self/exe", O_RDONLY);

	KEEP(mmap(NULL, 4 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0));
	close(fd);
}

static void step(long number)
{
	(void)number;
	keep_mappings();
	punch_holes();
	replace_the_middle();
	grow_by_mremap();
	commit_pieces();
	protect_over_a_hole();
	fail_to_map();
	map_and_unmap();
	keep_large_blocks();
	map_file();
}

int main(void)
{
	return workload_serve(step);
}
