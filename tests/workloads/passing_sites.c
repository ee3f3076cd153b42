// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * passing_sites - ever new call stacks, whose blocks are soon freed, as of a JIT that moves its code.
 *
 *     passing_sites [STACKS [KEPT [THREADS]]]           run N: N blocks, each by the next of the stacks
 *
 * After the last of the STACKS comes the first again. The blocks of one in KEPT stacks stay live, the others are
 * freed at once.
 * The threads share the work. The stack of number n is its path in call_paths.h, to the one function that allocates,
 * allocate_at_leaf().
 */
#define _GNU_SOURCE
#include "call_paths.h"

#define SIZE 101

static long stacks, kept, wanted, next_path;
static int bits, thread_count;
static __thread int keeps;
static struct site site_leaf = {.function = "allocate_at_leaf"};

SITE_FUNCTION static void allocate_at_leaf(void)
{
	void *address = malloc(SIZE);

	if (!address)
		WORKLOAD_FATAL("no memory");
	KEEP(address);
	if (!keeps)
		free(address);
}

static void allocate(int thread)
{
	(void)thread;
	for (long i = 0; i < wanted / thread_count; i++) {
		long path = __atomic_fetch_add(&next_path, 1, __ATOMIC_RELAXED) % stacks;

		keeps = path % kept == kept - 1;
		left(path, bits);
		site_allocated(&site_leaf, 1, SIZE);
		if (!keeps)
			site_freed(&site_leaf, 1, SIZE);
	}
}

static void step(long number)
{
	wanted = number;
	workload_run_threads();
}

int main(int argc, char **argv)
{
	stacks = workload_argument(argc, argv, 1, 1000);
	kept = workload_argument(argc, argv, 2, 100);
	thread_count = (int)workload_argument(argc, argv, 3, 1);
	bits = bits_of(stacks);
	workload_start_threads(thread_count, allocate);
	return workload_serve(step);
}
