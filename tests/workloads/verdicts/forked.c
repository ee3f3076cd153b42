// SPDX-License-Identifier: GPL-2.0-or-later
/* forked - a worker process leaks; its parent waits. */
#include <sys/wait.h>

#include "verdicts.h"

SITE_FUNCTION static void inherit(void)
{
	for (int i = 0; i < 1000; i++) {
		void *block = malloc(100);

		KEEP(block);
	}
}

SITE_FUNCTION static void work(void)
{
	void *block = malloc(128);

	KEEP(block);
}

int main(void)
{
	pid_t worker;

	inherit();
	worker = fork();
	if (worker) {
		ready(worker);
		return waitpid(worker, NULL, 0) < 0;
	}
	wait_for_line();
	for (;;) {
		work();
		sleep_ms(100);
	}
}
