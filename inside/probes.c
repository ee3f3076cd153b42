/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "probes.h"

#include "usdt.h"

#define AT_4_PLACES(do, first) do(first) do(first + 1) do(first + 2) do(first + 3)
#define AT_16_PLACES(do, first)                                  \
	AT_4_PLACES(do, first) AT_4_PLACES(do, first + 4)        \
	AT_4_PLACES(do, first + 8) AT_4_PLACES(do, first + 12)
#define AT_EACH_PLACE(do)                                        \
	AT_16_PLACES(do, 0) AT_16_PLACES(do, 16)                 \
	AT_16_PLACES(do, 32) AT_16_PLACES(do, 48)
#define ONE_MORE(place) +1
enum { PLACES = AT_EACH_PLACE(ONE_MORE), PLACES_IN_WORD = sizeof(uint64_t) / sizeof(unsigned short) };

/* The semaphores of all places, and the same in words: nearly all of them are down. */
union semaphores {
	volatile unsigned short places[PLACES];
	volatile uint64_t words[PLACES / PLACES_IN_WORD];
};

PROBE_SEMAPHORE(volatile unsigned short, otel_memory_alloc_semaphore);
PROBE_SEMAPHORE(volatile unsigned short, otel_memory_free_semaphore);
PROBE_SEMAPHORE(union semaphores, bpfleak_alloc_semaphores);
PROBE_SEMAPHORE(union semaphores, bpfleak_free_semaphores);
PROBE_SEMAPHORE(volatile unsigned short, bpfleak_coarser_semaphores[MAX_WANTED_DOUBLINGS]);

/* The first place from `place` on whose semaphore is up; PLACES if there is none. */
static unsigned int next_wanted(const union semaphores *semaphores, unsigned int place)
{
	while (place < PLACES && !semaphores->places[place]) {
		bool begins_word = place % PLACES_IN_WORD == 0;

		place += begins_word && !semaphores->words[place / PLACES_IN_WORD] ? PLACES_IN_WORD : 1;
	}
	return place;
}

#define FOR_EACH_WANTED(place, semaphores)                                  \
	for (place = next_wanted(semaphores, 0); place < PLACES; place = next_wanted(semaphores, place + 1))

bool are_blocks_wanted(void)
{
	return otel_memory_alloc_semaphore || next_wanted(&bpfleak_alloc_semaphores, 0) < PLACES;
}

void announce_block(void *block, size_t size, uint64_t weighted_bytes)
{
	unsigned int place;

	if (otel_memory_alloc_semaphore)
		PROBE3(otel_memory, alloc, otel_memory_alloc_semaphore, block, size, weighted_bytes);
	FOR_EACH_WANTED(place, &bpfleak_alloc_semaphores) {
		switch (place) {
#define ANNOUNCE_BLOCK(place)                                                                                  \
		case place:                                                                                    \
			PROBE3(bpfleak, alloc, bpfleak_alloc_semaphores + 2 * (place), block, size, weighted_bytes); \
			break;
		AT_EACH_PLACE(ANNOUNCE_BLOCK)
		}
	}
}

void announce_block_end(void *block)
{
	unsigned int place;

	if (otel_memory_free_semaphore)
		PROBE1(otel_memory, free, otel_memory_free_semaphore, block);
	FOR_EACH_WANTED(place, &bpfleak_free_semaphores) {
		switch (place) {
#define ANNOUNCE_END(place)                                                                  \
		case place:                                                                  \
			PROBE1(bpfleak, free, bpfleak_free_semaphores + 2 * (place), block); \
			break;
		AT_EACH_PLACE(ANNOUNCE_END)
		}
	}
}

/* Never called: these probes are there for their semaphores. */
__attribute__((used)) static void doublings(void *unused)
{
#define DOUBLING(number) PROBE1(bpfleak, coarser, bpfleak_coarser_semaphores + 2 * (number), unused);
	AT_4_PLACES(DOUBLING, 0)
}
_Static_assert(MAX_WANTED_DOUBLINGS == 4, "a probe for each doubling");

unsigned int wanted_doublings(void)
{
	unsigned int number, wanted = 0;

	for (number = 0; number < MAX_WANTED_DOUBLINGS; number++)
		wanted += bpfleak_coarser_semaphores[number] != 0;
	return wanted;
}
