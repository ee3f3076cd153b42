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
#include <stdint.h>

#define MARK_PAGE_BYTES 4096
#define MARK_OFFSET 16

/* Whether a block at `address` could be a sampled one. Of NULL too, which no bit is ever set for. */
static inline bool may_be_marked(const void *address)
{
	return ((uintptr_t)address & (MARK_PAGE_BYTES - 1 - MARK_OFFSET)) == 0;
}

/* Note that the block at `address` is a sampled one. False: that cannot be noted of this address. */
bool set_mark(const void *address);

/* Take the note back. Returns whether there was one: of two threads that ask, one is told so. */
bool take_mark(const void *address);

#endif
