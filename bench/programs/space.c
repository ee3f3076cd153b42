// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * space - changes the address space in a loop.
 *
 *     space pair                     run N: N times mmap of 64 KiB, and munmap
 *     space commit                   run N: N times mprotect of 64 KiB of a reservation, to use it and back
 *
 * Nothing is written to, so that there are no page faults. Nothing stays.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <sys/mman.h>

#define BYTES (64L << 10)

static char *reserved;

SITE_FUNCTION static void map_and_unmap(long count)
{
	for (long i = 0; i < count; i++) {
		void *address = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (address == MAP_FAILED)
			WORKLOAD_FATAL("mmap failed");
		munmap(address, BYTES);
	}
}

SITE_FUNCTION static void commit_and_give_back(long count)
{
	for (long i = 0; i < count; i++)
		if (mprotect(reserved + BYTES, BYTES, PROT_READ | PROT_WRITE) ||
		    mprotect(reserved + BYTES, BYTES, PROT_NONE))
			WORKLOAD_FATAL("mprotect failed");
}

static void step(long count)
{
	if (reserved)
		commit_and_give_back(count);
	else
		map_and_unmap(count);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "commit"))
		reserved = mmap(NULL, 16 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return workload_serve(step);
}
