// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * growing - a program whose memory grows, or only looks like it.
 *
 *     growing leak|steady|saw|jump                     run N: N rounds of 20 ms
 *
 * leak: 101 KiB a round are never freed. steady: they are freed at once. saw: they are freed together, every
 * 23rd round, and given back to the kernel. jump: in the 200th round 64 MiB are allocated, for good.
 */
#include "workload.h"

#include <malloc.h>
#include <time.h>

enum { BLOCK_BYTES = 101 << 10, TEETH = 23, JUMP_ROUND = 200, JUMP_BYTES = 64 << 20 };

static const char *mode;
static struct site site_leak = {.function = "never_freed"};
static struct site site_work = {.function = "freed_later"};
static struct site site_jump = {.function = "allocated_once"};
static struct block held[TEETH];
static long rounds, held_count;

SITE_FUNCTION static void *never_freed(size_t size)
{
	void *address = memset(malloc(size), 1, size);

	KEEP(address);
	return address;
}

SITE_FUNCTION static void *freed_later(size_t size)
{
	void *address = memset(malloc(size), 1, size);

	KEEP(address);
	return address;
}

SITE_FUNCTION static void *allocated_once(size_t size)
{
	void *address = memset(malloc(size), 1, size);

	KEEP(address);
	return address;
}

static void release(void)
{
	while (held_count > 0) {
		void *address = held[--held_count].address;

		block_freed(&held[held_count]);
		free(address);
	}
	malloc_trim(0);
}

static void one_round(void)
{
	rounds++;
	if (!strcmp(mode, "leak")) {
		block_allocated(&site_leak, never_freed(BLOCK_BYTES), BLOCK_BYTES);
		return;
	}
	if (!strcmp(mode, "jump") && rounds == JUMP_ROUND)
		block_allocated(&site_jump, allocated_once(JUMP_BYTES), JUMP_BYTES);
	held[held_count++] = block_allocated(&site_work, freed_later(BLOCK_BYTES), BLOCK_BYTES);
	if (strcmp(mode, "saw") || held_count == TEETH)
		release();
}

static void step(long number)
{
	const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};

	for (long i = 0; i < number; i++) {
		one_round();
		nanosleep(&pause, NULL);
	}
}

int main(int argc, char **argv)
{
	mode = argc > 1 ? argv[1] : "steady";
	return workload_serve(step);
}
