// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * seccomp - allocates under a seccomp filter: 23 blocks stay and 101 are freed in each step.
 *
 *     seccomp [allow|strict]
 *
 * allow: a filter that allows everything. strict: one that kills the process at any system call but the
 * few that it needs itself, so that a system call added by a tracer would be seen.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { KEPT = 23, FREED = 101 };

#define ALLOW(call) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter allow_all[] = {
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

static struct sock_filter strict[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	ALLOW(read),
	ALLOW(write),
	ALLOW(brk),
	ALLOW(mmap),
	ALLOW(munmap),
	ALLOW(mprotect),
	ALLOW(exit_group),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};

static struct site site_keep = {.function = "allocate_filtered"};

SITE_FUNCTION static struct block allocate_filtered(size_t size)
{
	return block_allocated(&site_keep, malloc(size), size);
}

static void step(long number)
{
	(void)number;
	for (int i = 0; i < KEPT; i++)
		allocate_filtered(509);
	for (int i = 0; i < FREED; i++) {
		struct block block = allocate_filtered(307);

		free(block.address);
		block_freed(&block);
	}
}

int main(int argc, char **argv)
{
	int is_strict = argc > 1 && !strcmp(argv[1], "strict");
	struct sock_fprog program = {
		.len = is_strict ? sizeof(strict) / sizeof(strict[0]) : 1,
		.filter = is_strict ? strict : allow_all,
	};

	free(malloc(1)); /* the first call makes its own system calls (getrandom) */
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		WORKLOAD_FATAL("the seccomp filter was refused");
	return workload_serve(step);
}
