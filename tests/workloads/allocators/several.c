// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * several - several allocators in one process, some of which come while it runs.
 *
 *     several FUNCTION LIBRARY [FUNCTION LIBRARY]...
 *
 * run 1 opens the libraries, each for itself (RTLD_LOCAL); run 2 keeps 23 blocks and frees 101 through
 * FUNCTION(size, 0) of each, and through malloc; the block is freed by the library's mi_free or free.
 */
#define _GNU_SOURCE
#include "../workload.h"

#include <dlfcn.h>

enum { KEPT = 23, FREED = 101, MAX_LIBRARIES = 4 };

static struct library {
	const char *function;
	const char *path;
	void *(*allocate)(size_t size, int flags);
	void (*release)(void *block);
} libraries[MAX_LIBRARIES];
static int count;

#define TAKE(name)                                                                                       \
	static struct site site_##name = {.function = #name};                                            \
	SITE_FUNCTION static struct block name(const struct library *library, size_t size)               \
	{                                                                                                \
		return block_allocated(&site_##name, library->allocate(size, 0), size);                  \
	}

TAKE(take_first)
TAKE(take_second)
TAKE(take_third)
TAKE(take_fourth)

static struct block (*const takes[])(const struct library *library, size_t size) = {take_first, take_second,
										    take_third, take_fourth};

static struct site site_take_malloc = {.function = "take_malloc"};
SITE_FUNCTION static struct block take_malloc(size_t size)
{
	return block_allocated(&site_take_malloc, malloc(size), size);
}

static void open_libraries(void)
{
	for (struct library *library = libraries; library < libraries + count; library++) {
		void *handle = dlopen(library->path, RTLD_NOW | RTLD_LOCAL);

		if (!handle)
			WORKLOAD_FATAL("%s", dlerror());
		*(void **)&library->allocate = dlsym(handle, library->function);
		*(void **)&library->release =
			dlsym(handle, strncmp(library->function, "mi_", 3) ? "free" : "mi_free");
		if (!library->allocate || !library->release)
			WORKLOAD_FATAL("%s lacks %s or its free", library->path, library->function);
	}
}

static void allocate(void)
{
	struct block block;

	for (int i = 0; i < KEPT + FREED; i++) {
		for (int j = 0; j < count; j++) {
			block = takes[j](&libraries[j], 100 + (size_t)(i * 7 + j));
			if (i >= KEPT) {
				libraries[j].release(block.address);
				block_freed(&block);
			}
		}
		block = take_malloc(10 + (size_t)i);
		if (i >= KEPT) {
			free(block.address);
			block_freed(&block);
		}
	}
}

static void step(long number)
{
	if (number == 1)
		open_libraries();
	else
		allocate();
}

int main(int argc, char **argv)
{
	for (; count < MAX_LIBRARIES && 2 * count + 2 < argc; count++) {
		libraries[count].function = argv[2 * count + 1];
		libraries[count].path = argv[2 * count + 2];
	}
	return workload_serve(step);
}
