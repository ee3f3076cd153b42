// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * lively - does all at once that breakpoints and return probes could break, until it is told to end (SIGTERM).
 *
 * Threads allocate and free; one leaves allocating functions by longjmp out of a signal handler, on an alternate
 * stack; one loads and unloads a library; one has children that free their parent's blocks. At the end it prints how
 * often each came round, and ends with 7; with 1 as soon as anything is not as it should be.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { END = 7, ALLOCATING = 2, KINDS = 4, STACK_BYTES = 1 << 16 };

static atomic_int over;
static atomic_ulong rounds[KINDS];
static sigjmp_buf before;
static volatile sig_atomic_t may_jump;

static void expect(int is_true)
{
	if (!is_true)
		_exit(1);
}

static void *allocate(void *unused)
{
	(void)unused;
	while (!over) {
		char *block = malloc(100), *larger;

		memset(block, 0x5a, 100);
		larger = realloc(block, 5000);
		for (int i = 0; i < 100; i++)
			expect(larger[i] == 0x5a);
		free(larger);
		rounds[0]++;
	}
	return NULL;
}

static void on_signal(int number)
{
	char here;
	stack_t now;

	(void)number;
	sigaltstack(NULL, &now);
	expect(now.ss_flags & SS_ONSTACK);
	expect((uintptr_t)&here >= (uintptr_t)now.ss_sp && (uintptr_t)&here < (uintptr_t)now.ss_sp + STACK_BYTES);
	if (may_jump)
		siglongjmp(before, 1);
}

/* Not in the middle of malloc, whose lock it would take along: in a function of ours that a probe's return passes. */
static void *jump(void *unused)
{
	static char memory[STACK_BYTES];
	stack_t stack = { .ss_sp = memory, .ss_size = sizeof(memory) };

	(void)unused;
	sigaltstack(&stack, NULL);
	while (!over) {
		if (!sigsetjmp(before, 1)) {
			char *volatile block = malloc(64);

			free(block);
			may_jump = 1;
			syscall(SYS_tgkill, getpid(), gettid(), SIGUSR1);
			expect(0);
		}
		may_jump = 0;
		rounds[1]++;
	}
	return NULL;
}

static void *load(void *unused)
{
	(void)unused;
	while (!over) {
		void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
		double (*root)(double) = (double (*)(double))dlsym(library, "sqrt");

		expect(root(4.0) == 2.0);
		dlclose(library);
		rounds[2]++;
		usleep(1000);
	}
	return NULL;
}

static void *have_children(void *unused)
{
	(void)unused;
	while (!over) {
		char *block = strdup("the parent's");
		pid_t child = fork();
		int status;

		if (child == 0) {
			free(block);
			free(malloc(123));
			_exit(END);
		}
		expect(child > 0 && waitpid(child, &status, 0) == child);
		expect(WIFEXITED(status) && WEXITSTATUS(status) == END);
		free(block);
		rounds[3]++;
		usleep(2000);
	}
	return NULL;
}

static void on_end(int number)
{
	(void)number;
	over = 1;
}

int main(void)
{
	void *(*const bodies[])(void *) = { allocate, allocate, jump, load, have_children };
	struct sigaction jumping = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_NODEFER };
	pthread_t threads[sizeof(bodies) / sizeof(*bodies)];

	sigaction(SIGUSR1, &jumping, NULL);
	signal(SIGTERM, on_end);
	for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++)
		expect(!pthread_create(&threads[i], NULL, bodies[i], NULL));
	puts("ready");
	fflush(stdout);
	for (size_t i = 0; i < sizeof(bodies) / sizeof(*bodies); i++)
		pthread_join(threads[i], NULL);
	for (int kind = 0; kind < KINDS; kind++)
		printf("%lu ", rounds[kind]);
	return END;
}
