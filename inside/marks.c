/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "marks.h"

#include <sys/mman.h>

#define LEAF_BYTES ((1UL << MARK_LEAF_BITS) / MARK_PAGE_BYTES * 2 / 8)

uint64_t *mark_leaves[MARK_LEAVES];

static uint64_t *make_leaf(uint64_t **slot)
{
	uint64_t *known = NULL;
	uint64_t *leaf = mmap(NULL, LEAF_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			      -1, 0);

	if (leaf == MAP_FAILED)
		return NULL;
	if (__atomic_compare_exchange_n(slot, &known, leaf, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return leaf;
	/* Another thread was faster. */
	munmap(leaf, LEAF_BYTES);
	return known;
}

bool set_mark(const void *address)
{
	uintptr_t place = (uintptr_t)address;
	size_t number = mark_number(place);
	uint64_t *leaf;

	if (!place || !may_be_marked(address) || place >> MARK_ADDRESS_BITS)
		return false;
	leaf = __atomic_load_n(&mark_leaves[place >> MARK_LEAF_BITS], __ATOMIC_ACQUIRE);
	if (!leaf)
		leaf = make_leaf(&mark_leaves[place >> MARK_LEAF_BITS]);
	if (!leaf)
		return false;
	__atomic_fetch_or(&leaf[number / 64], 1ULL << number % 64, __ATOMIC_RELAXED);
	return true;
}

bool take_mark(const void *address)
{
	uintptr_t place = (uintptr_t)address;
	size_t number = mark_number(place);
	uint64_t bit = 1ULL << number % 64;

	if (!is_marked(address))
		return false;
	return __atomic_fetch_and(&mark_leaves[place >> MARK_LEAF_BITS][number / 64], ~bit, __ATOMIC_RELAXED) & bit;
}
