// SPDX-License-Identifier: GPL-2.0-or-later
/* warm_up - every request needs one of 1,000 objects, each of which is created at its first use. */
#include "verdicts.h"

static void *things[1000];

SITE_FUNCTION static void *make(void)
{
	void *block = malloc(700);

	KEEP(block);
	return block;
}

int main(void)
{
	unsigned long random = 23;

	ready(getpid());
	wait_for_line();
	for (;;) {
		random = random * 6364136223846793005UL + 1442695040888963407UL;
		void **thing = &things[(random >> 33) % 1000];

		if (!*thing)
			*thing = make();
		sleep_ms(10);
	}
}
