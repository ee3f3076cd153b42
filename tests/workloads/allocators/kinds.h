// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * kinds.h - 23 blocks kept and 101 freed through each of many ways to allocate, on several threads.
 *
 *     PROGRAM [THREADS]
 *
 * A program lists its kinds by KIND and calls kinds_start(). Each `take_X` is a site. A thread keeps 23
 * blocks of each kind and allocates 101 more, which the next thread frees by `give_X`. Then it tells its
 * stories, which are the program's own.
 *
 * Valid as C and as C++.
 */
#ifndef BPFLEAKD_KINDS_H
#define BPFLEAKD_KINDS_H

#include "../workload.h"

enum { KEPT = 23, PASSED = 101, MAX_KINDS = 80, UNIT = 64 };

/* Sizes are multiples of UNIT, which is also the requested alignment: some allocators require that. */
static inline size_t kinds_size(int i)
{
	return UNIT * (size_t)(1 + i % 37);
}

#define SITE_OF(function_name) {function_name, 0, 0, 0, 0, 0, 0, NULL}

/* `allocate` makes a block of `size` bytes, `release` frees the block `p` of `size` bytes. */
#define KIND(name, allocate, release)                                                                    \
	static struct site site_take_##name = SITE_OF("take_" #name);                                    \
	SITE_FUNCTION static struct block take_##name(size_t size)                                       \
	{                                                                                                \
		return block_allocated(&site_take_##name, allocate, size);                               \
	}                                                                                                \
	SITE_FUNCTION static void give_##name(struct block *block)                                       \
	{                                                                                                \
		void *p = block->address;                                                                \
		size_t size = block->size;                                                               \
                                                                                                         \
		(void)size;                                                                              \
		release;                                                                                 \
		NO_TAIL_CALL();                                                                          \
		block_freed(block);                                                                      \
	}

#define LISTED(name) {take_##name, give_##name}

struct kind {
	struct block (*take)(size_t size);
	void (*give)(struct block *block);
};

static const struct kind *kinds;
static int kinds_count;
static void (*kinds_stories)(void);
static struct block kinds_passed[WORKLOAD_MAX_THREADS][MAX_KINDS][PASSED];
static pthread_barrier_t kinds_phase;

static void kinds_body(int thread)
{
	int next = (thread + 1) % workload_thread_count;

	for (int kind = 0; kind < kinds_count; kind++) {
		for (int i = 0; i < KEPT; i++)
			kinds[kind].take(kinds_size(i + thread));
		for (int i = 0; i < PASSED; i++)
			kinds_passed[thread][kind][i] = kinds[kind].take(kinds_size(i * 2 + thread));
	}
	pthread_barrier_wait(&kinds_phase);
	for (int kind = 0; kind < kinds_count; kind++)
		for (int i = 0; i < PASSED; i++)
			kinds[kind].give(&kinds_passed[next][kind][i]);
	for (int i = 0; i < KEPT; i++)
		kinds_stories();
}

static void kinds_step(void)
{
	workload_run_threads();
}

/* Starts the threads; each tells its stories KEPT times in a step. */
static void kinds_start(int argc, char **argv, const struct kind *listed, int count, void (*stories)(void))
{
	int threads = (int)workload_argument(argc, argv, 1, 3);

	if (count > MAX_KINDS)
		WORKLOAD_FATAL("%d kinds: %d are possible", count, MAX_KINDS);
	kinds = listed;
	kinds_count = count;
	kinds_stories = stories;
	pthread_barrier_init(&kinds_phase, NULL, (unsigned)threads);
	workload_start_threads(threads, kinds_body);
}

#endif
