/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Allocates from a heap that is large enough, in a sandbox that kills for any system call but read, write and exit.
 * It ends with 1 if the library sampled nothing.
 *
 * usage: sandboxed SEMAPHORE...	(addresses within libbpfleak.so)
 */
#define _GNU_SOURCE
#include <linux/seccomp.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "semaphores.h"

#define HEAP_BYTES (8 << 20)
#define BYTES 100
#define BLOCKS 1000
#define ROUNDS 100

static void *blocks[BLOCKS];

int main(int argc, char **argv)
{
	long sampled = 0;

	if (!find_semaphores(argc - 1, argv + 1))
		abort();
	/* The heap keeps what is freed. */
	mallopt(M_MMAP_THRESHOLD, 2 * HEAP_BYTES);
	mallopt(M_TRIM_THRESHOLD, 4 * HEAP_BYTES);
	free(malloc(HEAP_BYTES));
	raise_semaphores(1);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		abort();
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < BLOCKS; i++) {
			blocks[i] = malloc(BYTES);
			/* Sampled blocks are larger than they have to be. */
			sampled += malloc_usable_size(blocks[i]) > 2 * BYTES;
		}
		for (int i = 0; i < BLOCKS; i++)
			free(blocks[i]);
	}
	syscall(SYS_exit, sampled < ROUNDS * BLOCKS / 50);
}
