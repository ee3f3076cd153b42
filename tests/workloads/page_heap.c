// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * page_heap - large blocks of which most are freed again and kept, for tcmalloc (preloaded): 1,000 blocks of
 * 100,000 bytes, of which three of four are freed. Notes, from tcmalloc itself: free_bytes and heap_bytes of its
 * page heap, after that.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <dlfcn.h>

enum { BLOCKS = 1000, BYTES = 100000 };

static void *kept[BLOCKS];

SITE_FUNCTION static void reserve(void)
{
	for (int i = 0; i < BLOCKS; i++) {
		kept[i] = malloc(BYTES);
		if (!kept[i])
			WORKLOAD_FATAL("no memory");
		memset(kept[i], 1, BYTES);
	}
	for (int i = 0; i < BLOCKS; i++)
		if (i % 4)
			free(kept[i]);
}

static double property(const char *name)
{
	int (*ask)(const char *, size_t *) =
		(int (*)(const char *, size_t *))dlsym(RTLD_DEFAULT, "MallocExtension_GetNumericProperty");
	size_t value = 0;

	if (!ask || !ask(name, &value))
		WORKLOAD_FATAL("no tcmalloc");
	return (double)value;
}

static void step(long number)
{
	(void)number;
	reserve();
	workload_note("free_bytes", property("tcmalloc.pageheap_free_bytes"));
	workload_note("heap_bytes", property("generic.heap_size"));
}

int main(void)
{
	return workload_serve(step);
}
