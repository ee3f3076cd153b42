// SPDX-License-Identifier: GPL-2.0-or-later
/* arena - maps a chunk whenever the last one is used up, and never unmaps one; a scratch mapping comes and goes. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "verdicts.h"

#define CHUNK (256 << 10)

SITE_FUNCTION static char *chunk(void)
{
	char *memory = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	KEEP(memory);
	return memory;
}

SITE_FUNCTION static void scratch(void)
{
	void *memory = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	KEEP(memory);
	sleep_ms(300);
	munmap(memory, CHUNK);
	NO_TAIL_CALL();
}

int main(void)
{
	ready(getpid());
	wait_for_line();
	for (;;) {
		memset(chunk(), 1, CHUNK);
		scratch();
		sleep_ms(500);
	}
}
