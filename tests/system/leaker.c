// SPDX-License-Identifier: GPL-2.0-or-later
/* leaker - keeps 23 blocks of 101 bytes each tenth of a second, and frees as many others. */
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline)) static void *leak_here(void)
{
	void *volatile kept = malloc(101);

	return kept;
}

int main(void)
{
	for (;;) {
		for (int i = 0; i < 23; i++) {
			leak_here();
			free(malloc(211));
		}
		usleep(100000);
	}
}
