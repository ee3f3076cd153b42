// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * exec_fork - what happens to a table when its process forks, executes another program or loses a thread.
 *
 *     exec_fork fork        each step: 23 blocks, then a child frees them all, allocates 101 of its own, ends
 *     exec_fork vfork       each step: 23 blocks, then vfork and exec of true(1)
 *     exec_fork exec        the first step allocates 23 blocks and executes this program again, as `again`
 *     exec_fork again       each step: 101 blocks
 *     exec_fork thread      the first step: a thread allocates 23 blocks and ends; then 101 more on main's
 *
 * Note: child_pid (fork), the last child.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <sys/wait.h>

enum { BEFORE = 23, AFTER = 101 };

static void *blocks[BEFORE];
static struct site site_before = {.function = "allocate_before"};
static struct site site_after = {.function = "allocate_after"};
static char *self;

SITE_FUNCTION static void allocate_before(void)
{
	for (int i = 0; i < BEFORE; i++)
		blocks[i] = block_allocated(&site_before, malloc(1009), 1009).address;
}

SITE_FUNCTION static void allocate_after(void)
{
	for (int i = 0; i < AFTER; i++)
		KEEP(block_allocated(&site_after, malloc(211), 211).address);
}

static void wait_for(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
		WORKLOAD_FATAL("the child did not end well");
}

static void step_fork(long number)
{
	pid_t child;

	(void)number;
	allocate_before();
	child = fork();
	if (child == 0) {
		for (int i = 0; i < BEFORE; i++)
			free(blocks[i]);
		allocate_after();
		_exit(0);
	}
	wait_for(child);
	workload_note("child_pid", child);
}

static void step_vfork(long number)
{
	pid_t child;

	(void)number;
	allocate_before();
	child = vfork();
	if (child == 0) {
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	wait_for(child);
}

static void step_exec(long number)
{
	(void)number;
	allocate_before();
	execl(self, self, "again", NULL);
	WORKLOAD_FATAL("%s could not be executed", self);
}

static void step_again(long number)
{
	(void)number;
	allocate_after();
}

/* The thread waits on this before it allocates and exits: it must not be started after "ready". */
static pthread_barrier_t go;
static pthread_t mortal;
static int thread_ended;

static void *allocate_and_end(void *argument)
{
	pthread_barrier_wait(&go);
	allocate_before();
	return argument;
}

static void step_thread(long number)
{
	(void)number;
	if (!thread_ended) {
		pthread_barrier_wait(&go);
		pthread_join(mortal, NULL);
		thread_ended = 1;
	}
	allocate_after();
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "fork";

	self = argv[0];
	if (!strcmp(mode, "fork"))
		return workload_serve(step_fork);
	if (!strcmp(mode, "vfork"))
		return workload_serve(step_vfork);
	if (!strcmp(mode, "exec"))
		return workload_serve(step_exec);
	if (!strcmp(mode, "again"))
		return workload_serve(step_again);
	if (!strcmp(mode, "thread")) {
		pthread_barrier_init(&go, NULL, 2);
		if (pthread_create(&mortal, NULL, allocate_and_end, NULL))
			WORKLOAD_FATAL("pthread_create failed");
		return workload_serve(step_thread);
	}
	WORKLOAD_FATAL("no mode is called %s", mode);
}
