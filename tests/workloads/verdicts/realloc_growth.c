// SPDX-License-Identifier: GPL-2.0-or-later
/* realloc_growth - a log in memory that only grows by realloc, and a buffer that also shrinks. */
#include "verdicts.h"

static char *all;
static size_t length;

SITE_FUNCTION static void append(void)
{
	length += 4096;
	all = realloc(all, length);
	KEEP(all);
}

SITE_FUNCTION static void *resize(void *buffer, size_t size)
{
	buffer = realloc(buffer, size);
	KEEP(buffer);
	return buffer;
}

int main(void)
{
	void *buffer = NULL;

	ready(getpid());
	wait_for_line();
	for (long round = 0;; round++) {
		append();
		buffer = resize(buffer, 1000 + (size_t)(round % 20) * 500);
		sleep_ms(300);
	}
}
