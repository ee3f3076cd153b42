// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * preempted - many threads on one processor, each at its own sizes and depths, and interrupted by each other.
 *
 *     preempted [THREADS]           run N: N blocks a thread; run 0: all blocks are freed
 *
 * Sites site_00 to site_31, each of one size, below as many calls of descend() as its depth says, and of those
 * of 100 KiB malloc makes a mapping. Threads exchange blocks, so that most are freed by another one than
 * allocated them, and sleep for moments: a thread whose sleep ends preempts the one that runs.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <malloc.h>
#include <sched.h>
#include <time.h>

enum { SITES = 32, SLOTS = 256, MAPPED_BYTES = 100 << 10, MAPPED_EVERY = 64, SLEEP_EVERY = 8, SLEEP_NS = 20000 };

static struct site sites[SITES];
static void *slots[SLOTS];
static long blocks;
static struct counts {
	long allocated, freed;
} counts[WORKLOAD_MAX_THREADS][SITES];

static size_t size_of(int site)
{
	return site == SITES - 1 ? MAPPED_BYTES : 40 + 24 * (size_t)site;
}

static int depth_of(int site)
{
	return site * 7 % 24;
}

#define SITE(number)                                                  \
	SITE_FUNCTION static void *site_##number(size_t size)         \
	{                                                             \
		void *address = malloc(size);                         \
                                                                      \
		KEEP(address);                                        \
		return address;                                       \
	}
#define NAMES(X) \
	X(00) X(01) X(02) X(03) X(04) X(05) X(06) X(07) X(08) X(09) X(10) X(11) X(12) X(13) X(14) X(15) \
	X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
NAMES(SITE)

#define ENTRY(number) {"site_" #number, site_##number},
static const struct {
	const char *name;
	void *(*allocate)(size_t size);
} functions[SITES] = {NAMES(ENTRY)};

SITE_FUNCTION static void *descend(int depth, int site)
{
	void *address;

	if (depth == 0)
		address = functions[site].allocate(size_of(site));
	else
		address = descend(depth - 1, site);
	NO_TAIL_CALL();
	return address;
}

/* The first word of a block is the number of its site. */
static void release(struct counts *count, void *address)
{
	if (!address)
		return;
	count[*(long *)address].freed++;
	free(address);
}

static void *allocate(struct counts *count, int site)
{
	void *address = descend(depth_of(site), site);

	if (!address)
		WORKLOAD_FATAL("no memory");
	*(long *)address = site;
	count[site].allocated++;
	return address;
}

static void body(int thread)
{
	static const struct timespec moment = {.tv_nsec = SLEEP_NS};
	struct counts *count = counts[thread];
	unsigned random = 2463534242u * (unsigned)(thread + 1);

	for (long i = 0; i < blocks; i++) {
		random ^= random << 13;
		random ^= random >> 17;
		random ^= random << 5;
		int site = i % MAPPED_EVERY ? (int)(random % (SITES - 1)) : SITES - 1;

		release(count, __atomic_exchange_n(&slots[(random >> 8) % SLOTS], allocate(count, site), __ATOMIC_ACQ_REL));
		if ((random >> 16) % SLEEP_EVERY == 0)
			nanosleep(&moment, NULL);
	}
}

static void note_counts(void)
{
	for (int thread = 0; thread < workload_thread_count; thread++)
		for (int site = 0; site < SITES; site++) {
			struct counts *count = &counts[thread][site];

			site_allocated(&sites[site], count->allocated, count->allocated * (long)size_of(site));
			site_freed(&sites[site], count->freed, count->freed * (long)size_of(site));
			*count = (struct counts){0};
		}
}

static void step(long number)
{
	blocks = number;
	if (blocks)
		workload_run_threads();
	else
		for (int slot = 0; slot < SLOTS; slot++)
			release(counts[0], __atomic_exchange_n(&slots[slot], NULL, __ATOMIC_ACQ_REL));
	note_counts();
}

int main(int argc, char **argv)
{
	cpu_set_t first;

	CPU_ZERO(&first);
	CPU_SET(0, &first);
	if (sched_setaffinity(0, sizeof(first), &first))
		WORKLOAD_FATAL("no processor 0");
	/* Fixed, so it does not grow with freed blocks. */
	mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
	for (int site = 0; site < SITES; site++)
		sites[site].function = functions[site].name;
	workload_start_threads((int)workload_argument(argc, argv, 1, 48), body);
	return workload_serve(step);
}
