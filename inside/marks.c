/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "marks.h"

#include <sys/mman.h>

#define LEAF_WORDS ((1UL << MARK_LEAF_BITS) / MARK_PLACE_BYTES / 64)
#define LEAF_BYTES (LEAF_WORDS * sizeof(uint64_t))

/*
 * Of most processes, all leaves. So the library makes no system call in a sandboxed process, which a seccomp filter
 * might kill for it.
 */
#define LEAVES_SET_ASIDE 16

uint64_t *mark_leaves[MARK_LEAVES];
bool marks_are_by_size;
static uint64_t leaves_set_aside[LEAVES_SET_ASIDE][LEAF_WORDS] __attribute__((aligned(MARK_PAGE_BYTES)));
static size_t leaves_taken;

static uint64_t *new_leaf(void)
{
	size_t number = __atomic_load_n(&leaves_taken, __ATOMIC_RELAXED);
	void *leaf;

	while (number < LEAVES_SET_ASIDE)
		if (__atomic_compare_exchange_n(&leaves_taken, &number, number + 1, false, __ATOMIC_RELAXED,
						__ATOMIC_RELAXED))
			return leaves_set_aside[number];
	leaf = mmap(NULL, LEAF_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return leaf == MAP_FAILED ? NULL : leaf;
}

static uint64_t *make_leaf(uint64_t **slot)
{
	uint64_t *known = NULL, *leaf = new_leaf();

	/* If another thread was faster, this leaf stays unused. */
	if (!leaf || __atomic_compare_exchange_n(slot, &known, leaf, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return leaf;
	return known;
}

bool set_mark(const void *address)
{
	uintptr_t place = (uintptr_t)address;
	size_t number = mark_number(place);
	uint64_t *leaf;

	if (place >> MARK_ADDRESS_BITS || !may_be_marked(address))
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
