// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * planted - a library to be preloaded: a program that reads and writes leaks by it.
 *
 * Every twentieth call of a function that reads or writes keeps a block of 1000 bytes, which nobody frees:
 * planted_leak(), called by planted_call(), is who should be blamed. So it is in the program whose name the
 * variable PLANTED_IN has; with PLANTED_STOP that program also stops itself before main(), so that a tool can be
 * attached to it before it does anything.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define EVERY 20
#define BYTES 1000

static int is_planted;
static atomic_uint calls;
static _Atomic(void **) last;

/* Blocks point to each other, so they are reachable: kept memory, not lost memory. */
__attribute__((noipa)) static void planted_leak(void)
{
	void **block = malloc(BYTES);

	if (!block)
		return;
	memset(block, 1, BYTES);
	block[0] = atomic_exchange(&last, block);
}

__attribute__((noipa)) static void planted_call(void)
{
	int kept = errno;

	if (is_planted && atomic_fetch_add(&calls, 1) % EVERY == 0)
		planted_leak();
	errno = kept;
}

__attribute__((constructor)) static void begin(void)
{
	const char *name = getenv("PLANTED_IN");

	if (!name || strcmp(name, program_invocation_short_name))
		return;
	is_planted = 1;
	if (getenv("PLANTED_STOP"))
		raise(SIGSTOP);
}

ssize_t read(int fd, void *buffer, size_t size)
{
	planted_call();
	return syscall(SYS_read, fd, buffer, size);
}

ssize_t pread64(int fd, void *buffer, size_t size, off_t offset)
{
	planted_call();
	return syscall(SYS_pread64, fd, buffer, size, offset);
}

ssize_t write(int fd, const void *buffer, size_t size)
{
	planted_call();
	return syscall(SYS_write, fd, buffer, size);
}

ssize_t pwrite64(int fd, const void *buffer, size_t size, off_t offset)
{
	planted_call();
	return syscall(SYS_pwrite64, fd, buffer, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
	planted_call();
	return syscall(SYS_writev, fd, parts, count);
}

ssize_t recv(int fd, void *buffer, size_t size, int flags)
{
	planted_call();
	return syscall(SYS_recvfrom, fd, buffer, size, flags, NULL, NULL);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	planted_call();
	return syscall(SYS_sendmsg, fd, message, flags);
}
