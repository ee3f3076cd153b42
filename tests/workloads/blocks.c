// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * blocks - what a list of blocks has to tell; run N does one of these:
 *
 *     run 1   guilty() leaks 20 blocks of 1 MiB that it gets through a wrapper, innocent() uses the same and
 *             frees all. Notes: block_0 .. block_19, their addresses; guilty_line, where it calls.
 *     run 2   temporary blocks, a known number in each function: notes temporary_FUNCTION.
 *     run 3   the heap and mappings rise and fall. Notes: peak, of both together; peak_swell, of one site.
 *     run 4   three threads at once, each in three functions that leak different amounts.
 *             Notes: tid_N, thread_N (what its blocks are in bytes), count_N.
 *     run 5   temporary blocks in two threads in turns. Their tids are equal modulo 64, which is how the programs
 *             remember a thread's last block. Notes as for 2.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <sys/mman.h>
#include <sys/syscall.h>

enum { LEAKED = 20, THREADS = 3, MIB = 1 << 20 };

static long mode;

/* -- 1: a wrapper ------------------------------------------------------------------------------------ */

static struct site site_checked = {.function = "checked_malloc"};
static const char *const names[LEAKED] = {
	"block_0",  "block_1",	"block_2",  "block_3",	"block_4",  "block_5",	"block_6",
	"block_7",  "block_8",	"block_9",  "block_10", "block_11", "block_12", "block_13",
	"block_14", "block_15", "block_16", "block_17", "block_18", "block_19",
};

SITE_FUNCTION static void *checked_malloc(size_t size)
{
	void *address = malloc(size);

	if (!address)
		WORKLOAD_FATAL("no memory for %zu bytes", size);
	return address;
}

SITE_FUNCTION static void guilty(int n)
{
	workload_note("guilty_line", __LINE__ + 1);
	void *address = checked_malloc(MIB);

	workload_note(names[n], (double)(uintptr_t)address);
	site_allocated(&site_checked, 1, MIB);
}

SITE_FUNCTION static void innocent(void)
{
	void *address = checked_malloc(MIB);

	KEEP(address);
	free(address);
	site_allocated(&site_checked, 1, MIB);
	site_freed(&site_checked, 1, MIB);
}

static void use_the_wrapper(void)
{
	for (int n = 0; n < LEAKED; n++) {
		innocent();
		guilty(n);
	}
}

/* -- 2: temporary blocks ------------------------------------------------------------------------------ */

static void *handed_over[THREADS];

SITE_FUNCTION static void in_pairs(void)
{
	for (int i = 0; i < 101; i++) {
		void *address = malloc(23);

		KEEP(address);
		free(address);
	}
}

/* Of two that overlap, the second one: another was allocated after the first. */
SITE_FUNCTION static void overlapping(void)
{
	for (int i = 0; i < 23; i++) {
		void *one = malloc(23);
		void *other = malloc(101);

		KEEP(one);
		KEEP(other);
		free(i % 2 ? one : other);
		free(i % 2 ? other : one);
	}
}

/* Each block that realloc replaces, and the last one. A failure replaces none. */
SITE_FUNCTION static void growing(void)
{
	void *address = malloc(23);

	for (size_t size = 101; size < 1000; size += 101)
		address = realloc(address, size);
	if (realloc(address, (size_t)1 << 62))
		WORKLOAD_FATAL("a realloc of 2^62 bytes succeeded");
	free(address);
}

SITE_FUNCTION static void kept_for_a_while(void)
{
	void *first = malloc(23), *last = NULL;

	for (int i = 0; i < 7; i++) {
		last = malloc(23);
		KEEP(last);
		free(last);
	}
	KEEP(first);
	free(first);
}

SITE_FUNCTION static void for_another_thread(void)
{
	for (int i = 0; i < THREADS; i++)
		handed_over[i] = malloc(23);
}

static void make_temporary_blocks(void)
{
	in_pairs();
	workload_note("temporary_in_pairs", 101);
	overlapping();
	workload_note("temporary_overlapping", 23);
	growing();
	workload_note("temporary_growing", 1 + 9);
	kept_for_a_while();
	workload_note("temporary_kept_for_a_while", 7);
	for_another_thread();
	workload_run_threads(); /* they free them */
	workload_note("temporary_for_another_thread", 0);
}

/* -- 3: peaks ------------------------------------------------------------------------------------------ */

static long live, peak;

static void note_live(long change)
{
	live += change;
	if (live > peak)
		peak = live;
}

SITE_FUNCTION static void swell(int count, size_t size)
{
	void *blocks[64];

	for (int i = 0; i < count; i++) {
		blocks[i] = malloc(size);
		note_live((long)size);
	}
	for (int i = 0; i < count; i++) {
		free(blocks[i]);
		note_live(-(long)size);
	}
}

SITE_FUNCTION static void *map(size_t size)
{
	void *address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (address == MAP_FAILED)
		WORKLOAD_FATAL("mmap failed");
	note_live((long)size);
	return address;
}

static void unmap(void *address, size_t size)
{
	munmap(address, size);
	note_live(-(long)size);
}

static void rise_and_fall(void)
{
	void *mapping;

	live = peak = 0;
	swell(23, 101 * 1024);		/* 2.3 MB */
	mapping = map(8 * MIB);
	swell(7, 100003);		/* 8 MiB and 0.7 MB: the peak of all */
	unmap(mapping, 8 * MIB);
	swell(61, 100003);		/* 6.1 MB: the peak of the heap */
	mapping = map(3 * MIB);
	swell(3, 100003);
	unmap(mapping, 3 * MIB);
	workload_note("peak", (double)peak);
	workload_note("peak_swell", 61 * 100003);
}

/* -- 4: three functions, three threads ------------------------------------------------------------------ */

static struct site site_large = {.function = "leak_large"};
static struct site site_medium = {.function = "leak_medium"};
static struct site site_small = {.function = "leak_small"};
static long tids[THREADS], thread_bytes[THREADS], thread_counts[THREADS];

/* Every third block is freed, the rest is lost. */
static void account(struct site *site, void *address, size_t size, int thread, int i)
{
	KEEP(address);
	site_allocated(site, 1, (long)size);
	if (i % 3 == 0) {
		free(address);
		site_freed(site, 1, (long)size);
		return;
	}
	thread_bytes[thread] += (long)size;
	thread_counts[thread]++;
}

SITE_FUNCTION void leak_large(int thread, int count)
{
	for (int i = 0; i < count; i++)
		account(&site_large, malloc(20480 + (size_t)thread), 20480 + (size_t)thread, thread, i);
}

SITE_FUNCTION void leak_medium(int thread, int count)
{
	for (int i = 0; i < count; i++)
		account(&site_medium, malloc(8192 + (size_t)i), 8192 + (size_t)i, thread, i);
}

SITE_FUNCTION void leak_small(int thread, int count)
{
	for (int i = 0; i < count; i++)
		account(&site_small, malloc(640), 640, thread, i);
}

static void leak_in_all_functions(int thread)
{
	tids[thread] = syscall(SYS_gettid);
	leak_large(thread, 1009 - 100 * thread);
	leak_medium(thread, 1009 + 100 * thread);
	leak_small(thread, 10007);
}

static void note_threads(void)
{
	static const char *const tid_names[] = {"tid_0", "tid_1", "tid_2"};
	static const char *const byte_names[] = {"thread_0", "thread_1", "thread_2"};
	static const char *const count_names[] = {"count_0", "count_1", "count_2"};

	for (int i = 0; i < THREADS; i++) {
		workload_note(tid_names[i], (double)tids[i]);
		workload_note(byte_names[i], (double)thread_bytes[i]);
		workload_note(count_names[i], (double)thread_counts[i]);
	}
}

/* -- 5: two threads in turns ---------------------------------------------------------------------------- */

enum { TURNS = 23, SAME_PLACE = 64 };

static pthread_barrier_t turn;
static volatile int is_partner;

SITE_FUNCTION static void in_turns(void)
{
	for (int i = 0; i < TURNS; i++) {
		void *address = malloc(23);

		KEEP(address);
		pthread_barrier_wait(&turn);	/* the partner allocates */
		pthread_barrier_wait(&turn);
		free(address);
		pthread_barrier_wait(&turn);	/* and frees */
	}
}

SITE_FUNCTION static void in_the_partners_turns(void)
{
	for (int i = 0; i < TURNS; i++) {
		pthread_barrier_wait(&turn);
		void *address = malloc(101);

		KEEP(address);
		pthread_barrier_wait(&turn);
		pthread_barrier_wait(&turn);
		free(address);
	}
}

static void *partner(void *unused)
{
	(void)unused;
	if ((syscall(SYS_gettid) - getpid()) % SAME_PLACE) {
		pthread_barrier_wait(&turn);
		return NULL;
	}
	is_partner = 1;
	pthread_barrier_wait(&turn);
	pthread_barrier_wait(&turn);	/* until it may begin */
	in_the_partners_turns();
	pthread_barrier_wait(&turn);
	return NULL;
}

/* Threads start and exit until one has a fitting tid. */
static void find_partner(void)
{
	pthread_t thread;

	pthread_barrier_init(&turn, NULL, 2);
	while (!is_partner) {
		if (pthread_create(&thread, NULL, partner, NULL))
			WORKLOAD_FATAL("pthread_create failed");
		pthread_barrier_wait(&turn);
		if (!is_partner)
			pthread_join(thread, NULL);
	}
}

static void take_turns(void)
{
	pthread_barrier_wait(&turn);
	in_turns();
	pthread_barrier_wait(&turn);
	workload_note("temporary_in_turns", TURNS);
	workload_note("temporary_in_the_partners_turns", TURNS);
}

/* ------------------------------------------------------------------------------------------------------- */

static void body(int thread)
{
	if (mode == 2)
		free(handed_over[thread]);
	else
		leak_in_all_functions(thread);
}

static void step(long number)
{
	mode = number;
	switch (number) {
	case 1:
		use_the_wrapper();
		break;
	case 2:
		make_temporary_blocks();
		break;
	case 3:
		rise_and_fall();
		break;
	case 4:
		workload_run_threads();
		note_threads();
		break;
	case 5:
		take_turns();
		break;
	default:
		WORKLOAD_FATAL("run 1 to 5, not %ld", number);
	}
}

int main(void)
{
	find_partner();
	workload_start_threads(THREADS, body);
	return workload_serve(step);
}
