/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The marks of sampled blocks: one bit for each place at which one may begin.
 *
 * free recognises nearly all blocks that are not sampled without their bit:
 *  - glibc keeps the size of a block in the word before it, which its free reads, too. A sampled block has at least
 *    MARK_LEAST_BYTES; smaller blocks have no mark. So a sampled block is where any block of its size would be, and
 *    the heap stays as it is without the library.
 *  - With other allocators, a sampled block begins at a page, or 16 bytes after one, where mapped chunks of a glibc
 *    before 2.34 begin (next.c). Blocks at other addresses have no mark.
 *
 * Blocks still belong to the allocator: code that frees one without this library does no harm and leaves a set bit,
 * which the next free at that place clears.
 *
 * The bits are in leaves for 1 GiB of addresses each; only pages that were written take memory. There are no locks:
 * the thread that clears a bit has taken the block.
 */
#ifndef BPFLEAK_MARKS_H
#define BPFLEAK_MARKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MARK_PAGE_BYTES 4096
#define MARK_OFFSET 16

/*
 * glibc caches freed chunks of up to 1,032 bytes and reuses them as they are; their frees are the fast ones. A small
 * sampled chunk at a page would also stay there forever, and in the end every block of the program would have its
 * own page. A larger chunk merges with its free neighbours.
 */
#define MARK_LEAST_BYTES 1040

/* Less than the distance of two blocks that may have a mark. */
#define MARK_PLACE_BYTES 1024

#define MARK_ADDRESS_BITS 47
#define MARK_LEAF_BITS 30	/* of addresses per leaf */
#define MARK_LEAVES (1UL << (MARK_ADDRESS_BITS - MARK_LEAF_BITS))

extern uint64_t *mark_leaves[MARK_LEAVES] __attribute__((visibility("hidden")));

/* Whether the allocator keeps a block's size in the word before it, as glibc does. Set before the first mark. */
extern bool marks_are_by_size __attribute__((visibility("hidden")));

/* glibc's own bytes and flags of the chunk included. */
static inline uint64_t size_word(const void *block)
{
	return ((const uint64_t *)block)[-1];
}

/* Whether `block` may be sampled; it is not NULL. */
static inline bool may_be_marked(const void *block)
{
	/* A hint, so that no branch is taken for a small block of glibc's. */
	if (__builtin_expect(marks_are_by_size, true))
		return size_word(block) > MARK_LEAST_BYTES;
	return ((uintptr_t)block & (MARK_PAGE_BYTES - 1 - MARK_OFFSET)) == 0;
}

/* The position of an address' bit in its leaf. */
static inline size_t mark_number(uintptr_t address)
{
	size_t number = (address & ((1UL << MARK_LEAF_BITS) - 1)) / MARK_PLACE_BYTES;

	/* Small blocks at a page and after one may be neighbours. */
	return marks_are_by_size ? number : number + (address & MARK_OFFSET) / MARK_OFFSET;
}

/*
 * Whether the block at `address`, where a sampled one may be, is sampled. Allocators reuse the same memory, so blocks
 * that are not sampled may be freed there again and again.
 */
static inline bool is_marked(const void *address)
{
	uintptr_t place = (uintptr_t)address;
	size_t number = mark_number(place);
	uint64_t *leaf;

	if (place >> MARK_ADDRESS_BITS)
		return false;
	leaf = __atomic_load_n(&mark_leaves[place >> MARK_LEAF_BITS], __ATOMIC_ACQUIRE);
	return leaf && (__atomic_load_n(&leaf[number / 64], __ATOMIC_RELAXED) >> number % 64 & 1);
}

/* Marks the block at `address` as sampled. False: there is no memory for the mark, or the address has none. */
bool set_mark(const void *address);

/* Clears the mark. Returns whether there was one; of two concurrent threads, one gets true. */
bool take_mark(const void *address);

#endif
