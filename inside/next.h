/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The allocator that the program would have without this library: the next one in the order in which symbols are
 * looked up, be it the C library's or one that the program brings along.
 *
 * Rules:
 *  - The functions are looked up at the first call, which may come before any constructor has run, and from any
 *    thread. Nobody waits for anybody: threads that come at the same time find the same.
 *  - What looking up itself allocates comes from pages of our own, and is never given back.
 *  - Memory is only allocated otherwise than asked for (at a page) where the functions for it are those of the very
 *    allocator that will be asked to free it. Where not, nothing is ever sampled.
 */
#ifndef BPFLEAK_NEXT_H
#define BPFLEAK_NEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
	/* Those below may be missing: NULL. */
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
	/* Whether blocks can be had at a page. */
	bool can_align;
};

/* Hidden: a call jumps through it without a look at the table of symbols. */
extern struct next_allocator next __attribute__((visibility("hidden")));

/* Look the functions up. False: this thread is about to do so. */
bool find_next_allocator(void);

/* Whether calls of malloc get here: a program, or a library before this one, may have one of its own. */
bool is_asked_first(void);

extern char early_pages[EARLY_PAGES][MARK_PAGE_BYTES] __attribute__((visibility("hidden")));

/* Whether a block is of our own pages; its size can be no larger than what is behind it. */
static inline bool is_early_block(const void *block)
{
	return (uintptr_t)block - (uintptr_t)early_pages < sizeof(early_pages);
}

size_t early_bytes_behind(const void *block);

#endif
