// SPDX-License-Identifier: GPL-2.0-or-later
/* Interrupted: a handler's frames lie on those of what the signal hit, or on a stack of their own. */
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "path.h"

static void handler(int number)
{
	USE(&number);
	walk_on();
	USE(&number);
}

static void handler_with_info(int number, siginfo_t *info, void *context)
{
	USE(&number);
	USE(info);
	USE(context);
	walk_on();
}

/* SA_NODEFER: a path may use the same signal twice. */
static void handle(int number, void (*with_info)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = {.sa_flags = flags | SA_NODEFER};

	if (with_info) {
		action.sa_sigaction = with_info;
		action.sa_flags |= SA_SIGINFO;
	} else {
		action.sa_handler = handler;
	}
	if (sigaction(number, &action, NULL))
		abort();
}

HOP void by_raise(void)
{
	handle(SIGUSR1, NULL, 0);
	raise(SIGUSR1);
	USE(&path_number);
}

HOP void by_kill(void)
{
	handle(SIGUSR2, handler_with_info, 0);
	kill(getpid(), SIGUSR2);
	USE(&path_number);
}

/* A separate stack for every use, because the kernel would restart at the top of the last one. */
HOP void on_signal_stack(void)
{
	size_t size = 1 << 18;
	stack_t before, stack = {.ss_size = size};

	stack.ss_sp = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack.ss_sp == MAP_FAILED)
		abort();
	if (sigaltstack(&stack, &before)) {
		/* Already on such a stack: stay there. */
		munmap(stack.ss_sp, size);
		by_raise();
		USE(&path_number);
		return;
	}
	handle(SIGURG, handler_with_info, SA_ONSTACK);
	raise(SIGURG);
	sigaltstack(&before, NULL);
	munmap(stack.ss_sp, size);
}

static volatile int *nowhere;

static void step_over(int number, siginfo_t *info, void *context)
{
	handler_with_info(number, info, context);
	/* The fault came from a store to this page; make it possible now. */
	mprotect((void *)((uintptr_t)nowhere & ~4095UL), 4096, PROT_READ | PROT_WRITE);
}

/* The interrupted address is the first instruction of its function: none comes before it. */
HOP void store_first(int *where)
{
	*where = 1;
}

HOP void by_fault(void)
{
	int *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	volatile int *before = nowhere;

	if (page == MAP_FAILED)
		abort();
	nowhere = page;
	handle(SIGSEGV, step_over, 0);
	store_first(page);
	nowhere = before;
	munmap(page, 4096);
}

const struct hop signal_hops[] = {
	{"raise", by_raise},
	{"kill", by_kill},
	{"signal-stack", on_signal_stack},
	{"fault", by_fault},
	{0},
};
