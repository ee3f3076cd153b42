// SPDX-License-Identifier: GPL-2.0-or-later
/* one_thread - eight threads do the same; one of them does not free. */
#include <pthread.h>

#include "verdicts.h"

SITE_FUNCTION static void keep(void)
{
	void *block = malloc(256);

	KEEP(block);
}

SITE_FUNCTION static void give_back(void)
{
	void *block = malloc(256);

	KEEP(block);
	sleep_ms(20);
	free(block);
	NO_TAIL_CALL();
}

static void *thread(void *argument)
{
	for (;;) {
		give_back();
		if (argument)
			keep();
		sleep_ms(230);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[8];

	ready(getpid());
	wait_for_line();
	for (long i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, thread, (void *)(long)(i == 5));
	pthread_join(threads[0], NULL);
}
