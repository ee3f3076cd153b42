/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The marks of sampled blocks: one bit for each address at which one may begin.
 *
 * A sampled block begins at a page, or 16 bytes after one, where glibc's mapped chunks begin. So free recognises
 * nearly all other blocks by the address, and checks the bit of the rest. Blocks still belong to the allocator: code
 * that frees one without this library does no harm and leaves a set bit, which the next free of that address clears.
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

#define MARK_ADDRESS_BITS 47
#define MARK_LEAF_BITS 30	/* of addresses per leaf */
#define MARK_LEAVES (1UL << (MARK_ADDRESS_BITS - MARK_LEAF_BITS))

extern uint64_t *mark_leaves[MARK_LEAVES] __attribute__((visibility("hidden")));

/* Whether a block at `address` may be sampled. True for NULL, whose bit is never set. */
static inline bool may_be_marked(const void *address)
{
	return ((uintptr_t)address & (MARK_PAGE_BYTES - 1 - MARK_OFFSET)) == 0;
}

/* The position of an address' bit in its leaf. */
static inline size_t mark_number(uintptr_t address)
{
	return (address & ((1UL << MARK_LEAF_BITS) - 1)) / MARK_PAGE_BYTES * 2 + (address & MARK_OFFSET) / MARK_OFFSET;
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
