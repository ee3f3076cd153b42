// SPDX-License-Identifier: GPL-2.0-or-later
/* stops - leaks a block twenty times a second, for the first 25 s. */
#include "verdicts.h"

SITE_FUNCTION static void forget(void)
{
	void *block = malloc(333);

	KEEP(block);
}

int main(void)
{
	double began_s;

	ready(getpid());
	wait_for_line();
	began_s = now_s();
	for (;;) {
		if (now_s() - began_s < 25)
			forget();
		sleep_ms(50);
	}
}
