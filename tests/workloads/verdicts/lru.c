// SPDX-License-Identifier: GPL-2.0-or-later
/* lru - a cache of 2,000 entries that drops the oldest for each new one: full after 20 s. */
#include "verdicts.h"

static void *entries[2000];

SITE_FUNCTION static void *insert(void)
{
	void *block = malloc(300);

	KEEP(block);
	return block;
}

int main(void)
{
	ready(getpid());
	wait_for_line();
	for (long i = 0;; i++) {
		void **entry = &entries[i % 2000];

		free(*entry);
		*entry = insert();
		sleep_ms(10);
	}
}
