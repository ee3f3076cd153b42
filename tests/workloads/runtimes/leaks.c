// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * leaks - the C library of the managed program Leaks: it has the ledger, and functions that leak.
 *
 * Main itself is what calls it: leaks_await() waits for a step and returns its number, -1 at the end.
 */
#include "../workload.h"

#include <errno.h>
#include <sys/mman.h>

static struct site site_heapmalloc = {.function = "heapmalloc"};
static struct site site_mmap_allocation = {.function = "mmap_allocation"};

SITE_FUNCTION int heapmalloc(int size_bytes)
{
	struct block block = block_allocated(&site_heapmalloc, malloc((size_t)size_bytes), (size_t)size_bytes);

	memset(block.address, 1, block.size);
	return 0;
}

/* A block of memory that is never unmapped, of which one page is used. */
SITE_FUNCTION int mmap_allocation(int size_bytes)
{
	char *address = mmap(NULL, (size_t)size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (address == MAP_FAILED)
		return errno;
	address[0] = 1;
	site_allocated(&site_mmap_allocation, 1, size_bytes);
	return 0;
}

int leaks_await(void)
{
	char line[128];

	if (workload_thread_count)
		workload_print_ledger();
	else
		workload_write("ready\n", 6);
	workload_thread_count = 1;
	if (!workload_read_line(line, sizeof(line)) || !strcmp(line, "exit"))
		return -1;
	if (strncmp(line, "run ", 4))
		WORKLOAD_FATAL("not a command: %s", line);
	return (int)strtol(line + 4, NULL, 10);
}

/* What the run-time says that its own heap has grown by. */
void leaks_note_managed(double bytes)
{
	workload_note("managed_bytes", bytes);
}
