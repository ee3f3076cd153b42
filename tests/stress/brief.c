// SPDX-License-Identifier: GPL-2.0-or-later
/* brief - allocates and frees for LIFE_MS, and ends. */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	long life_ms = argc > 1 ? atol(argv[1]) : 100;

	for (long passed_ms = 0; passed_ms < life_ms; passed_ms += 10) {
		void *volatile block = malloc(101);

		free(block);
		usleep(10000);
	}
	return 0;
}
