// SPDX-License-Identifier: GPL-2.0-or-later
/* sleepers N - N processes that do nothing, until standard input ends. Prints "ready" when they run. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Private memory, as a small service has. */
#define TOUCHED_BYTES (256 << 10)

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 0;
	char c;

	for (int i = 0; i < count; i++) {
		pid_t child = fork();

		if (child < 0)
			return 1;
		if (child == 0) {
			char *memory = malloc(TOUCHED_BYTES);

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (memory)
				memset(memory, 1, TOUCHED_BYTES);
			for (;;)
				pause();
		}
	}
	puts("ready");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	return 0;
}
