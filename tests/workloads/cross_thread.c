// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * cross_thread - producers allocate, consumers free, at full speed; 23 blocks a pair of threads remain.
 *
 *     cross_thread [PAIRS_OF_THREADS [BLOCKS]]          run N: N blocks a pair of threads
 *
 * Every block is freed by another thread than the one that allocated it, while its producer is
 * already inside the next malloc: an address is given out again at once.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <sched.h>

enum { KEPT = 23, SLOTS = 64 };

/* One producer and one consumer; the counters never wrap and are taken modulo SLOTS. */
struct ring {
	void *slots[SLOTS];
	unsigned long produced __attribute__((aligned(64)));
	unsigned long consumed __attribute__((aligned(64)));
};

static struct ring rings[WORKLOAD_MAX_THREADS / 2];
static long blocks;
static struct site site_produce = {.function = "produce"};

static size_t size_of(long i)
{
	return 16 + (size_t)(i % 211);
}

SITE_FUNCTION static void *produce(size_t size)
{
	void *address = malloc(size);

	KEEP(address);
	return address;
}

SITE_FUNCTION static void consume(void *address)
{
	free(address);
	NO_TAIL_CALL();
}

static void producer(struct ring *ring)
{
	long bytes = 0;

	for (long i = 0; i < blocks; i++) {
		while (ring->produced - __atomic_load_n(&ring->consumed, __ATOMIC_ACQUIRE) == SLOTS)
			sched_yield();
		ring->slots[ring->produced % SLOTS] = produce(size_of(i));
		bytes += (long)size_of(i);
		__atomic_store_n(&ring->produced, ring->produced + 1, __ATOMIC_RELEASE);
	}
	site_allocated(&site_produce, blocks, bytes);
}

static void consumer(struct ring *ring)
{
	long bytes = 0, freed = 0;

	for (long i = 0; i < blocks; i++) {
		while (ring->consumed == __atomic_load_n(&ring->produced, __ATOMIC_ACQUIRE))
			sched_yield();
		void *address = ring->slots[ring->consumed % SLOTS];

		if (i % (blocks / KEPT) || i / (blocks / KEPT) >= KEPT) {
			consume(address);
			bytes += (long)size_of(i);
			freed++;
		}
		__atomic_store_n(&ring->consumed, ring->consumed + 1, __ATOMIC_RELEASE);
	}
	site_freed(&site_produce, freed, bytes);
}

static void body(int thread)
{
	struct ring *ring = &rings[thread / 2];

	if (thread % 2)
		consumer(ring);
	else
		producer(ring);
}

static void step(long number)
{
	if (number > 0)
		blocks = number;
	if (blocks < KEPT)
		WORKLOAD_FATAL("at least %d blocks are needed", KEPT);
	workload_run_threads();
}

int main(int argc, char **argv)
{
	int pairs = (int)workload_argument(argc, argv, 1, 2);

	blocks = workload_argument(argc, argv, 2, 500000);
	workload_start_threads(pairs * 2, body);
	return workload_serve(step);
}
