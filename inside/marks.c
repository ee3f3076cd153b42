/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "marks.h"

#include <stddef.h>
#include <sys/mman.h>

#define ADDRESS_BITS 47
#define LEAF_BITS 30		/* of addresses in a leaf */
#define PAGE_BITS 12
#define LEAVES (1UL << (ADDRESS_BITS - LEAF_BITS))
#define LEAF_WORDS ((1UL << (LEAF_BITS - PAGE_BITS)) * 2 / 64)

static uint64_t *leaves[LEAVES];

/* Where the bit of an address is, within its leaf. */
struct place {
	size_t word;
	uint64_t bit;
};

static struct place place_of(uintptr_t address)
{
	size_t number = (address & ((1UL << LEAF_BITS) - 1)) >> PAGE_BITS << 1 | (address & MARK_OFFSET) / MARK_OFFSET;

	return (struct place){ number / 64, 1ULL << number % 64 };
}

static uint64_t *make_leaf(uint64_t **slot)
{
	uint64_t *known = NULL;
	uint64_t *leaf = mmap(NULL, LEAF_WORDS * sizeof(*leaf), PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (leaf == MAP_FAILED)
		return NULL;
	if (__atomic_compare_exchange_n(slot, &known, leaf, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return leaf;
	/* Another thread was faster. */
	munmap(leaf, LEAF_WORDS * sizeof(*leaf));
	return known;
}

bool set_mark(const void *address)
{
	uintptr_t number = (uintptr_t)address;
	struct place place = place_of(number);
	uint64_t *leaf;

	if (!number || !may_be_marked(address) || number >> ADDRESS_BITS)
		return false;
	leaf = __atomic_load_n(&leaves[number >> LEAF_BITS], __ATOMIC_ACQUIRE);
	if (!leaf)
		leaf = make_leaf(&leaves[number >> LEAF_BITS]);
	if (!leaf)
		return false;
	__atomic_fetch_or(&leaf[place.word], place.bit, __ATOMIC_RELAXED);
	return true;
}

bool take_mark(const void *address)
{
	uintptr_t number = (uintptr_t)address;
	struct place place = place_of(number);
	uint64_t *leaf;

	if (!may_be_marked(address) || number >> ADDRESS_BITS)
		return false;
	leaf = __atomic_load_n(&leaves[number >> LEAF_BITS], __ATOMIC_ACQUIRE);
	if (!leaf || !(__atomic_load_n(&leaf[place.word], __ATOMIC_RELAXED) & place.bit))
		return false;
	return __atomic_fetch_and(&leaf[place.word], ~place.bit, __ATOMIC_RELAXED) & place.bit;
}
