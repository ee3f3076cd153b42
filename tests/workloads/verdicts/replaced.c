// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * replaced - two tables that are full before anybody watches: their entries are replaced one by one. The old ones
 * of one are freed where the new ones are made, those of the other by a thread that never allocates.
 */
#include <pthread.h>

#include "verdicts.h"

#define ENTRIES 6000

static void *own[ENTRIES], *handed[ENTRIES];
static int ends[2];

SITE_FUNCTION static void *renew(void)
{
	void *block = malloc(300);

	KEEP(block);
	return block;
}

SITE_FUNCTION static void *hand_over(void)
{
	void *block = malloc(200);

	KEEP(block);
	return block;
}

static void *consume(void *nothing)
{
	void *block;

	while (read(ends[0], &block, sizeof(block)) == sizeof(block))
		free(block);
	return nothing;
}

int main(void)
{
	pthread_t consumer;

	for (int i = 0; i < ENTRIES; i++) {
		own[i] = malloc(300);
		handed[i] = malloc(200);
	}
	if (pipe(ends) || pthread_create(&consumer, NULL, consume, NULL))
		return 3;
	ready(getpid());
	wait_for_line();
	for (long round = 0;; round++) {
		void *old = handed[round % ENTRIES];

		free(own[round % ENTRIES]);
		own[round % ENTRIES] = renew();
		handed[round % ENTRIES] = hand_over();
		if (write(ends[1], &old, sizeof(old)) != sizeof(old))
			return 3;
		sleep_ms(20);
	}
}
