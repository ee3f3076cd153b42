// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * moving - blocks that are all in use, at any moment, while what points to them moves through the heap.
 *
 *     run 1       the threads begin;  run 0: they end
 *
 * Each payload is pointed to by one holder, and that by its thread's table, which is on the heap too. Holders
 * are replaced and freed, tables grow and shrink by realloc: memory that was freed is full of old pointers.
 */
#include "workload.h"

#include <stdatomic.h>

enum { THREADS = 3, SLOTS = 499, PAYLOAD_BYTES = 1009, LARGE_BYTES = 4001 };

struct holder {
	void *payload, *again;
	char rest[];
};

static struct table {
	struct holder **slots;
	long slots_count;
} tables[THREADS];
static atomic_int wanted;
static pthread_t threads[THREADS];
static struct site site_payload = {.function = "new_payload"};

SITE_FUNCTION static void *new_payload(void)
{
	void *payload = calloc(1, PAYLOAD_BYTES);

	KEEP(payload);
	return payload;
}

static struct holder *new_holder(long size, void *payload)
{
	struct holder *holder = (struct holder *)malloc(sizeof(*holder) + (size_t)size);

	holder->payload = holder->again = payload;
	return holder;
}

static void *move_all_the_time(void *argument)
{
	struct table *table = (struct table *)argument;
	unsigned int seed = (unsigned int)(table - tables);

	while (!atomic_load(&wanted))
		usleep(1000);
	for (long i = 0; i < SLOTS; i++)
		table->slots[i] = new_holder(101, new_payload());
	while (atomic_load(&wanted)) {
		long slot = rand_r(&seed) % SLOTS;
		struct holder *old = table->slots[slot];
		/* Sizes that involve realloc and malloc_consolidate, caches and bins. */
		struct holder *holder = new_holder(rand_r(&seed) % LARGE_BYTES, old->payload);

		table->slots[slot] = holder;
		free(old);
		if (!(rand_r(&seed) % 64)) {
			usleep(200);
			table->slots_count = SLOTS + rand_r(&seed) % LARGE_BYTES;
			table->slots = (struct holder **)realloc(table->slots, sizeof(void *) * (size_t)table->slots_count);
		}
		if (!(rand_r(&seed) % 16))
			table->slots[slot] = (struct holder *)realloc(holder, (size_t)(sizeof(*holder) + rand_r(&seed) % LARGE_BYTES));
	}
	return NULL;
}

static void step(long number)
{
	if (number && !atomic_exchange(&wanted, 1))
		site_allocated(&site_payload, THREADS * SLOTS, (long)THREADS * SLOTS * PAYLOAD_BYTES);
	if (!number) {
		atomic_store(&wanted, 0);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
	}
}

int main(void)
{
	for (int i = 0; i < THREADS; i++) {
		tables[i].slots = (struct holder **)calloc(SLOTS, sizeof(void *));
		if (pthread_create(&threads[i], NULL, move_all_the_time, &tables[i]))
			WORKLOAD_FATAL("pthread_create failed");
	}
	return workload_serve(step);
}
