/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Replaces live blocks in random order, as a server does for days, and prints what its heap takes: resident KiB with
 * all blocks there, the same after all pairs, and nanoseconds a pair over the last quarter of them.
 *
 * usage: churn BLOCKS BYTES_MIN BYTES_MAX PAIRS [SEMAPHORE...]	(addresses within libbpfleak.so)
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "semaphores.h"

static uint64_t state = 1;

static uint64_t next_random(void)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return state >> 33;
}

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static long resident_kib(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%*d %ld", &pages) != 1)
		abort();
	fclose(file);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* As many blocks of one size as of half or twice that. */
static void *new_block(size_t least, size_t most)
{
	size_t size = least;
	char *block;

	while (size < most && next_random() & 1)
		size *= 2;
	size += next_random() % size;
	size = size < most ? size : most;
	block = malloc(size);
	if (!block)
		abort();
	block[0] = block[size - 1] = 1;
	return block;
}

int main(int argc, char **argv)
{
	size_t count = strtoul(argv[1], NULL, 0), least = strtoul(argv[2], NULL, 0), most = strtoul(argv[3], NULL, 0);
	long pairs = atol(argv[4]), full_kib;
	double began_ns = 0;
	void **blocks = mmap(NULL, count * sizeof(*blocks), PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (blocks == MAP_FAILED || !find_semaphores(argc - 5, argv + 5))
		abort();
	for (size_t i = 0; i < count; i++)
		blocks[i] = new_block(least, most);
	raise_semaphores(1);
	full_kib = resident_kib();
	for (long done = 0; done < pairs; done++) {
		size_t place = next_random() % count;

		if (done == pairs - pairs / 4)
			began_ns = now_ns();
		free(blocks[place]);
		blocks[place] = new_block(least, most);
	}
	began_ns = now_ns() - began_ns;
	printf("%ld %ld %.1f\n", full_kib, resident_kib(), began_ns / (double)(pairs / 4));
	return 0;
}
