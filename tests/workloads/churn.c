// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * churn - malloc and free in a loop, timed: what tracing costs the traced program.
 *
 *     churn [THREADS [PAIRS [SIZE]]]                    run N: N pairs a thread
 *
 * Nothing stays live. Note: ns_per_pair, the mean over the threads of the last step.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <time.h>

static long pairs, size;
static struct site site_churn = {.function = "churn"};
static double ns_per_pair[WORKLOAD_MAX_THREADS];

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

SITE_FUNCTION static void churn(long count)
{
	for (long i = 0; i < count; i++) {
		void *address = malloc((size_t)size);

		KEEP(address);
		free(address);
	}
}

static void body(int thread)
{
	double started_ns = now_ns();

	churn(pairs);
	ns_per_pair[thread] = (now_ns() - started_ns) / (double)pairs;
	site_allocated(&site_churn, pairs, pairs * size);
	site_freed(&site_churn, pairs, pairs * size);
}

static void step(long number)
{
	double sum = 0;

	if (number > 0)
		pairs = number;
	workload_run_threads();
	for (int i = 0; i < workload_thread_count; i++)
		sum += ns_per_pair[i];
	workload_note("ns_per_pair", sum / workload_thread_count);
}

int main(int argc, char **argv)
{
	int threads = (int)workload_argument(argc, argv, 1, 1);

	pairs = workload_argument(argc, argv, 2, 1000000);
	size = workload_argument(argc, argv, 3, 64);
	workload_start_threads(threads, body);
	return workload_serve(step);
}
