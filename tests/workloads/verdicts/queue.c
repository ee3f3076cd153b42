// SPDX-License-Identifier: GPL-2.0-or-later
/* queue - fills for ten seconds and is drained at once; and a batch every seven, half of it drained slowly. */
#include "verdicts.h"

static void *jobs[4000], *batch[400];

SITE_FUNCTION static void *push(void)
{
	void *block = malloc(200);

	KEEP(block);
	return block;
}

SITE_FUNCTION static void *load(void)
{
	void *block = malloc(2000);

	KEEP(block);
	return block;
}

int main(void)
{
	int waiting = 0, loaded = 0;

	ready(getpid());
	wait_for_line();
	for (long tick = 0;; tick++) {
		if (tick % 1000 == 999)
			while (waiting)
				free(jobs[--waiting]);
		jobs[waiting++] = push();
		if (tick % 700 == 0)
			while (loaded < 400)
				batch[loaded++] = load();
		if (loaded)
			free(batch[--loaded]);
		sleep_ms(10);
	}
}
