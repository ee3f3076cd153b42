/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which addresses are those of sampled blocks: a bit for each address that may be one.
 *
 * A sampled block begins at a page, or 16 bytes behind, where glibc's mapped chunks begin. So a free tells nearly all
 * others from it by the address, and looks at a bit for the rest. Blocks stay the allocator's own: whoever
 * frees one without us does no harm, and leaves a bit behind that the next free of that address takes.
 *
 * The bits are in leaves for 1 GiB of addresses each, of which only pages that were written take memory. Nothing is
 * locked: who clears a bit has taken the block.
 */
#ifndef BPFLEAK_MARKS_H
#define BPFLEAK_MARKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MARK_PAGE_BYTES 4096
#define MARK_OFFSET 16

#define MARK_ADDRESS_BITS 47
#define MARK_LEAF_BITS 30	/* of addresses in a leaf */
#define MARK_LEAVES (1UL << (MARK_ADDRESS_BITS - MARK_LEAF_BITS))

extern uint64_t *mark_leaves[MARK_LEAVES] __attribute__((visibility("hidden")));

/* Whether a block at `address` could be a sampled one. Of NULL too, which no bit is ever set for. */
static inline bool may_be_marked(const void *address)
{
	return ((uintptr_t)address & (MARK_PAGE_BYTES - 1 - MARK_OFFSET)) == 0;
}

/* Where the bit of an address is, within its leaf. */
static inline size_t mark_number(uintptr_t address)
{
	return (address & ((1UL << MARK_LEAF_BITS) - 1)) / MARK_PAGE_BYTES * 2 + (address & MARK_OFFSET) / MARK_OFFSET;
}

/*
 * Whether the block at `address`, which could be a sampled one, is. Allocators give the same memory out again and again,
 * so that a block which is not, but is where one was, may be freed any number of times.
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

/* Note that the block at `address` is a sampled one. False: that cannot be noted of this address. */
bool set_mark(const void *address);

/* Take the note back. Returns whether there was one: of two threads that ask, one is told so. */
bool take_mark(const void *address);

#endif
