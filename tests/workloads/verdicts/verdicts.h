// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * verdicts.h - programs that leak, or do not, at a known function, until they are killed.
 *
 * Each says "ready PID" (of the process to watch), waits for a line on its standard input, and goes on by itself.
 * What is true of which function is in the .json beside the program: a verdict, or several that are right.
 */
#ifndef BPFLEAKD_VERDICTS_H
#define BPFLEAKD_VERDICTS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A function that must be found in stacks under its own name: never inlined, cloned or merged. */
#define SITE_FUNCTION __attribute__((noipa))
/* Stops the compiler from reasoning about a pointer, so that it removes no malloc/free pair. */
#define KEEP(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")
/* After a call whose frame must stay on the stack, so that it does not become a jump. */
#define NO_TAIL_CALL() __asm__ volatile("" : : : "memory")

__attribute__((unused)) static void ready(int pid)
{
	char line[32];
	int length = snprintf(line, sizeof(line), "ready %d\n", pid);

	if (write(1, line, (size_t)length) != length)
		_exit(3);
}

/* Once a monitor watches it. */
__attribute__((unused)) static void wait_for_line(void)
{
	char c = 0;

	while (c != '\n')
		if (read(0, &c, 1) != 1)
			_exit(3);
}

__attribute__((unused)) static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

__attribute__((unused)) static void sleep_ms(long ms)
{
	struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	nanosleep(&pause, NULL);
}

#endif
