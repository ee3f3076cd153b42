// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * opens_late - opens a library when told, and leaks through it.
 *
 *     opens_late LIBRARY       catalog.cpp
 *
 * The first step opens it, every other keeps 23 blocks.
 */
#include <dlfcn.h>

#include "../workload.h"

static struct site site_reserve = {.function = "catalog::reserve"};
static const char *path;
static void (*catalog_open)(struct site *site, long count);

static void open_library(void)
{
	void *library = dlopen(path, RTLD_NOW);

	if (library)
		*(void **)&catalog_open = dlsym(library, "catalog_open");
	if (!catalog_open)
		WORKLOAD_FATAL("%s", dlerror());
}

/* Without a frame pointer: only the tables of both files lead through. */
SITE_FUNCTION static void use_library(void)
{
	catalog_open(&site_reserve, 23);
	NO_TAIL_CALL();
}

static void step(long number)
{
	(void)number;
	if (catalog_open)
		use_library();
	else
		open_library();
}

int main(int argc, char **argv)
{
	if (argc != 2)
		WORKLOAD_FATAL("usage: opens_late LIBRARY");
	path = argv[1];
	return workload_serve(step);
}
