// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * crowd COUNT PAIRS_PER_S [BYTES] - COUNT processes that allocate and free so often, until standard input ends.
 *
 * Prints "ready PID..." when they run. Each keeps 1000 blocks, of BYTES (default: 16 bytes to 4 KiB), from 32 call
 * stacks. It replaces them in random order: in order of their addresses, which no real heap keeps, the processor would
 * fetch each block before it is freed, and any disturbance of that order would look like a cost of tracing.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define KEPT 1000
#define STACK_BITS 5
#define PERIOD_NS 10000000L

static void *kept[KEPT];

__attribute__((noipa)) static void *make_block(size_t size) { return malloc(size); }

static void *right(unsigned path, int further, size_t size);

__attribute__((noipa)) static void *left(unsigned path, int further, size_t size)
{
	void *made = further == 0 ? make_block(size)
		     : path & 1	  ? right(path >> 1, further - 1, size)
				  : left(path >> 1, further - 1, size);

	__asm__ volatile("" : : : "memory");
	return made;
}

__attribute__((noipa)) static void *right(unsigned path, int further, size_t size)
{
	void *made = further == 0 ? make_block(size)
		     : path & 1	  ? right(path >> 1, further - 1, size)
				  : left(path >> 1, further - 1, size);

	__asm__ volatile("" : : : "memory");
	return made;
}

static void work(double pairs_per_s, size_t bytes)
{
	struct timespec due;
	double owed = 0;
	unsigned made = 0;
	uint64_t random = 1;

	clock_gettime(CLOCK_MONOTONIC, &due);
	for (;;) {
		for (owed += pairs_per_s * PERIOD_NS / 1e9; owed >= 1; owed--, made++) {
			size_t place;

			random = random * 6364136223846793005ULL + 1442695040888963407ULL;
			place = (random >> 33) % KEPT;
			free(kept[place]);
			kept[place] = left(made, STACK_BITS, bytes ? bytes : (size_t)16 << made * 7 % 9);
		}
		due.tv_nsec += PERIOD_NS;
		if (due.tv_nsec >= 1000000000L) {
			due.tv_nsec -= 1000000000L;
			due.tv_sec++;
		}
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
	}
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	double pairs_per_s = argc > 2 ? atof(argv[2]) : 1;
	size_t bytes = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
	pid_t parent = getpid();
	char c;

	printf("ready");
	fflush(stdout);
	for (int i = 0; i < count; i++) {
		pid_t child = fork();

		if (child < 0)
			return 1;
		if (child == 0) {
			prctl(PR_SET_NAME, "crowd-member");
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() == parent)
				work(pairs_per_s, bytes);
			return 1;
		}
		printf(" %d", child);
		fflush(stdout);
	}
	puts("");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	return 0;
}
