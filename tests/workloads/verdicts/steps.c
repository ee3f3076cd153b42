// SPDX-License-Identifier: GPL-2.0-or-later
/* steps - every eight seconds a hundred blocks are leaked; every nine, a whole megabyte at once. */
#include "verdicts.h"

SITE_FUNCTION static void forget(void)
{
	void *block = malloc(1000);

	KEEP(block);
}

SITE_FUNCTION static void forget_much(void)
{
	char *block = malloc(1 << 20);

	KEEP(block);
	memset(block, 1, 1 << 20);
}

int main(void)
{
	ready(getpid());
	wait_for_line();
	for (long second = 0;; second++) {
		if (second % 8 == 3)
			for (int i = 0; i < 100; i++)
				forget();
		if (second % 9 == 4)
			forget_much();
		sleep_ms(1000);
	}
}
