// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * lives - a process that allocates by itself, and others that come and go around it.
 *
 *     lives child        the first step forks a child that allocates 101 blocks when told to, and frees a block
 *                        of its parent's; the second step tells it. The blocks are not in the ledger.
 *     lives spawn        each step allocates 23 blocks and runs true(1) N times, one after the other
 *     lives threads      each step allocates 23 blocks and runs N threads, one after the other
 *
 * Note: child_pid (child).
 */
#define _GNU_SOURCE
#include "workload.h"

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { OWN = 23, OF_THE_CHILD = 101 };

static struct site site_own = {.function = "allocate_own"};
static void *parents_block;
static int to_child[2], from_child[2];
static pid_t child;

SITE_FUNCTION static void allocate_own(void)
{
	for (int i = 0; i < OWN; i++)
		KEEP(block_allocated(&site_own, malloc(1009), 1009).address);
}

SITE_FUNCTION static void allocate_in_child(void)
{
	for (int i = 0; i < OF_THE_CHILD; i++)
		KEEP(malloc(211));
}

static void live_as_child(void)
{
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (read(to_child[0], &byte, 1) != 1)
		_exit(1);
	free(parents_block);
	allocate_in_child();
	if (write(from_child[1], "", 1) != 1)
		_exit(1);
	pause();
	_exit(0);
}

static void step_child(long number)
{
	char byte;

	(void)number;
	if (!child) {
		child = fork();
		if (child == 0)
			live_as_child();
		workload_note("child_pid", child);
		return;
	}
	if (write(to_child[1], "", 1) != 1 || read(from_child[0], &byte, 1) != 1)
		WORKLOAD_FATAL("the child does not answer");
}

static void step_spawn(long number)
{
	static char *arguments[] = {"true", NULL}, *environment[] = {NULL};
	pid_t pid;
	int status;

	allocate_own();
	for (long i = 0; i < number; i++)
		if (posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environment) ||
		    waitpid(pid, &status, 0) != pid)
			WORKLOAD_FATAL("/bin/true cannot be run");
}

static void *end_at_once(void *argument)
{
	return argument;
}

static void step_threads(long number)
{
	pthread_attr_t small;
	pthread_t thread;

	allocate_own();
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (long i = 0; i < number; i++)
		if (pthread_create(&thread, &small, end_at_once, NULL) || pthread_join(thread, NULL))
			WORKLOAD_FATAL("pthread_create failed");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "child";

	if (!strcmp(mode, "child")) {
		parents_block = malloc(1009);
		if (pipe(to_child) || pipe(from_child))
			WORKLOAD_FATAL("no pipe");
		return workload_serve(step_child);
	}
	if (!strcmp(mode, "spawn"))
		return workload_serve(step_spawn);
	if (!strcmp(mode, "threads"))
		return workload_serve(step_threads);
	WORKLOAD_FATAL("no mode is called %s", mode);
}
