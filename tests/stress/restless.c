// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * restless - allocates and frees in two threads, and after DELAY_US does what ends or changes a process.
 *
 *     restless exit DELAY_US      ends with 7, from its second thread
 *     restless kill DELAY_US      is killed by SIGKILL
 *     restless exec DELAY_US      executes itself three times, then ends with 7
 *     restless fork DELAY_US      forks children that free its blocks, allocate and end; then ends with 7
 *     restless vfork DELAY_US     has true(1) executed again and again; then ends with 7
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { END = 7, BLOCKS = 64, TIMES = 3 };

static const char *what;
static unsigned long delay_us;
static char *self;
static int times_left;

__attribute__((noinline)) static void churn(void)
{
	void *blocks[BLOCKS];

	for (int i = 0; i < BLOCKS; i++)
		blocks[i] = malloc(16 + 8 * i);
	for (int i = 0; i < BLOCKS; i++)
		free(blocks[i]);
}

static void children(int times)
{
	for (int i = 0; i < times; i++) {
		char *block = strdup("the parent's");
		pid_t child = fork();

		if (child == 0) {
			free(block);
			churn();
			_exit(0);
		}
		free(block);
		waitpid(child, NULL, 0);
	}
}

static void execute_true(int times)
{
	for (int i = 0; i < times; i++) {
		pid_t child = vfork();

		if (child == 0) {
			execl("/bin/true", "true", NULL);
			_exit(1);
		}
		waitpid(child, NULL, 0);
	}
}

static void *act(void *nothing)
{
	(void)nothing;
	usleep(delay_us);
	if (strcmp(what, "kill") == 0)
		kill(getpid(), SIGKILL);
	if (strcmp(what, "exec") == 0 && times_left > 0) {
		char delay[32], left[32];

		snprintf(delay, sizeof delay, "%lu", delay_us);
		snprintf(left, sizeof left, "%d", times_left - 1);
		execl(self, self, what, delay, left, NULL);
		_exit(1);
	}
	if (strcmp(what, "fork") == 0)
		children(20);
	if (strcmp(what, "vfork") == 0)
		execute_true(20);
	exit(END);
}

int main(int count, char **arguments)
{
	pthread_t thread;

	if (count < 3)
		return 2;
	self = "/proc/self/exe";
	what = arguments[1];
	delay_us = strtoul(arguments[2], NULL, 10);
	times_left = count > 3 ? atoi(arguments[3]) : TIMES;
	if (pthread_create(&thread, NULL, act, NULL))
		return 3;
	for (;;)
		churn();
}
