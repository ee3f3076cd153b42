// SPDX-License-Identifier: GPL-2.0-or-later
/* several - a leak, a cache that fills for eight seconds, a queue of four, and short lives, in one program. */
#include "verdicts.h"

static void *jobs[1000];

SITE_FUNCTION static void leak(void)
{
	void *block = malloc(230);

	KEEP(block);
}

SITE_FUNCTION static void fill(void)
{
	void *block = malloc(500);

	KEEP(block);
}

SITE_FUNCTION static void *push(void)
{
	void *block = malloc(200);

	KEEP(block);
	return block;
}

SITE_FUNCTION static void churn(void)
{
	void *block = malloc(80);

	KEEP(block);
	free(block);
	NO_TAIL_CALL();
}

int main(void)
{
	double began_s;
	int waiting = 0;

	ready(getpid());
	wait_for_line();
	began_s = now_s();
	for (long tick = 0;; tick++) {
		if (tick % 400 == 399)
			while (waiting)
				free(jobs[--waiting]);
		jobs[waiting++] = push();
		if (tick % 20 == 0)
			leak();
		if (now_s() - began_s < 8)
			fill();
		churn();
		sleep_ms(10);
	}
}
