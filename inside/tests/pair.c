/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a pair of malloc and free takes: the fastest of many rounds, in nanoseconds.
 *
 * usage: pair BYTES
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 400
#define PAIRS 20000

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
	size_t size = argc > 1 ? strtoul(argv[1], NULL, 0) : 100;
	double best = 1e9, sum = 0;

	for (int round = 0; round < ROUNDS; round++) {
		double began_ns = now_ns(), took_ns;

		for (int i = 0; i < PAIRS; i++) {
			void *volatile block = malloc(size);

			free(block);
		}
		took_ns = (now_ns() - began_ns) / PAIRS;
		sum += took_ns;
		if (took_ns < best)
			best = took_ns;
	}
	printf("%.2f %.2f\n", best, sum / ROUNDS);
	return 0;
}
