/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The allocator that the program would use without this library: the next one in the order of symbol look-up, in the
 * C library or in one that the program brings along.
 *
 * Rules:
 *  - The first call looks the functions up; it may come before any constructor has run, and from any thread. No
 *    thread waits for another: concurrent look-ups find the same functions.
 *  - Allocations during the look-up come from the library's own pages, which are never freed.
 *  - The library changes an allocation (its size or place) only if the functions for that belong to the same allocator
 *    as free. Otherwise it samples nothing.
 */
#ifndef BPFLEAK_NEXT_H
#define BPFLEAK_NEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "marks.h"

#define EARLY_PAGES 64

struct next_allocator {
	void *(*malloc)(size_t size);
	void *(*calloc)(size_t count, size_t size);
	void *(*realloc)(void *old, size_t size);
	void (*free)(void *block);
	int (*posix_memalign)(void **result, size_t alignment, size_t size);
	void *(*aligned_alloc)(size_t alignment, size_t size);
	void *(*memalign)(size_t alignment, size_t size);
	void *(*valloc)(size_t size);
	void *(*pvalloc)(size_t size);
	/* The following may be missing: NULL. */
	size_t (*malloc_usable_size)(void *block);
	void (*free_sized)(void *block, size_t size);
	void (*free_aligned_sized)(void *block, size_t alignment, size_t size);
	/* jemalloc(3) */
	void *(*mallocx)(size_t size, int flags);
	void *(*rallocx)(void *old, size_t size, int flags);
	void (*dallocx)(void *block, int flags);
	void (*sdallocx)(void *block, size_t size, int flags);
	/* mimalloc */
	void *(*zalloc_aligned)(size_t size, size_t alignment);
	void *(*realloc_aligned)(void *old, size_t size, size_t alignment);
	/* Whether blocks can be placed so that free recognises them: marks.h. */
	bool can_mark;
};

/* Hidden, so that calls jump through it without a look at the symbol table. */
extern struct next_allocator next __attribute__((visibility("hidden")));

/* Looks the functions up. False: this thread is already doing so. */
bool find_next_allocator(void);

/* The kernel's function in the process (vDSO) that returns the time in seconds; NULL: there is none. */
time_t (*clock_without_call(void))(time_t *);

/* Whether calls of malloc reach this library: the program, or a library before this one, may define malloc. */
bool is_asked_first(void);

extern char early_pages[EARLY_PAGES][MARK_PAGE_BYTES] __attribute__((visibility("hidden")));

/* Whether a block lies in the library's own pages. */
static inline bool is_early_block(const void *block)
{
	return (uintptr_t)block - (uintptr_t)early_pages < sizeof(early_pages);
}

size_t early_block_bytes(const void *block);

#endif
