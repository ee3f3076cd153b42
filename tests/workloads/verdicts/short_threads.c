// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * short_threads - leaks 5 KB a second while a thread a second works and ends. glibc frees what a thread's cache
 * holds a second time when the thread ends, which replaces nothing.
 */
#include <pthread.h>

#include "verdicts.h"

SITE_FUNCTION static void forget(void)
{
	void *block = malloc(500);

	KEEP(block);
}

SITE_FUNCTION static void *work(void *nothing)
{
	void *blocks[64];

	for (int size = 24; size <= 1000; size += 64) {
		for (int i = 0; i < 7; i++)
			blocks[i] = malloc((size_t)size);
		for (int i = 0; i < 7; i++) {
			KEEP(blocks[i]);
			free(blocks[i]);
		}
	}
	return nothing;
}

int main(void)
{
	pthread_t thread;

	ready(getpid());
	wait_for_line();
	for (long round = 0;; round++) {
		forget();
		if (round % 10 == 0 && pthread_create(&thread, NULL, work, NULL) == 0)
			pthread_join(thread, NULL);
		sleep_ms(100);
	}
}
