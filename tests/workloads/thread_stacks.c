// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * thread_stacks: `run N` starts N threads with stacks of 16 MiB, which stay.
 *
 * The ledger's site is of the stacks alone: pthread_create's own blocks are not in it.
 */
#include "workload.h"

#define STACK_BYTES (16L << 20)

static struct site site_start = {.function = "start_thread_that_stays"};

static void *stay(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

SITE_FUNCTION static void start_thread_that_stays(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	pthread_attr_setguardsize(&attributes, 0);
	if (pthread_create(&thread, &attributes, stay, NULL))
		WORKLOAD_FATAL("pthread_create failed");
	site_allocated(&site_start, 1, STACK_BYTES);
}

static void step(long number)
{
	for (long i = 0; i < number; i++)
		start_thread_that_stays();
}

int main(void)
{
	return workload_serve(step);
}
