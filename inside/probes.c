/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "probes.h"

#include "usdt.h"

#define AT_EACH_PLACE(do)                               \
	do(0) do(1) do(2) do(3) do(4) do(5) do(6) do(7) \
	do(8) do(9) do(10) do(11) do(12) do(13) do(14) do(15)
#define ONE_MORE(place) +1
enum { PLACES = AT_EACH_PLACE(ONE_MORE) };

PROBE_SEMAPHORE(otel_memory_alloc_semaphore);
PROBE_SEMAPHORE(otel_memory_free_semaphore);
PROBE_SEMAPHORE(bpfleak_alloc_semaphores)[PLACES];
PROBE_SEMAPHORE(bpfleak_free_semaphores)[PLACES];

bool are_blocks_wanted(void)
{
	unsigned int wanted = otel_memory_alloc_semaphore;
	int place;

	for (place = 0; place < PLACES; place++)
		wanted |= bpfleak_alloc_semaphores[place];
	return wanted;
}

void announce_block(void *block, size_t size, uint64_t weighted_bytes)
{
	if (otel_memory_alloc_semaphore)
		PROBE3(otel_memory, alloc, otel_memory_alloc_semaphore, block, size, weighted_bytes);
#define ANNOUNCE_BLOCK(place)                                                                                  \
	if (bpfleak_alloc_semaphores[place])                                                                   \
		PROBE3(bpfleak, alloc, bpfleak_alloc_semaphores + 2 * place, block, size, weighted_bytes);
	AT_EACH_PLACE(ANNOUNCE_BLOCK)
}

void announce_block_end(void *block)
{
	if (otel_memory_free_semaphore)
		PROBE1(otel_memory, free, otel_memory_free_semaphore, block);
#define ANNOUNCE_END(place)                                                                  \
	if (bpfleak_free_semaphores[place])                                                  \
		PROBE1(bpfleak, free, bpfleak_free_semaphores + 2 * place, block);
	AT_EACH_PLACE(ANNOUNCE_END)
}
