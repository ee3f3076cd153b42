// SPDX-License-Identifier: GPL-2.0-or-later
/* cache - fills for the first half minute and is then complete; the data that filled it is freed. */
#include "verdicts.h"

SITE_FUNCTION static void fill(void)
{
	void *block = malloc(500);

	KEEP(block);
}

SITE_FUNCTION static void look_up(void)
{
	void *block = malloc(80);

	KEEP(block);
	free(block);
	NO_TAIL_CALL();
}

int main(void)
{
	double began_s;

	ready(getpid());
	wait_for_line();
	began_s = now_s();
	for (;;) {
		if (now_s() - began_s < 30)
			fill();
		look_up();
		sleep_ms(10);
	}
}
