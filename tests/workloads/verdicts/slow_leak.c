// SPDX-License-Identifier: GPL-2.0-or-later
/* slow_leak - 50,000 mallocs a second, of which one is never freed; and as many that all are. */
#include "verdicts.h"

SITE_FUNCTION static void *request(size_t size)
{
	void *block = malloc(size);

	KEEP(block);
	return block;
}

SITE_FUNCTION static void answer(size_t size)
{
	void *block = malloc(size);

	KEEP(block);
	free(block);
	NO_TAIL_CALL();
}

int main(void)
{
	double next_s;

	ready(getpid());
	wait_for_line();
	next_s = now_s();
	for (long round = 0;; round++) {
		/* A hundredth of a second. */
		for (int i = 0; i < 250; i++) {
			void *block = request(1000);

			if (round % 100 || i)
				free(block);
			answer(96);
		}
		next_s += 0.01;
		if (now_s() < next_s)
			sleep_ms((long)((next_s - now_s()) * 1000) + 1);
		else
			next_s = now_s();
	}
}
