// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * host A B - loads plugins, has them leak, and unloads them. Steps: 1, 2: a short visit of A, of B; 3, 4: load A, B, and
 * leave it there; 5: unload what is there; 6: visits of B, each at another address. The notes of the ledger say where a
 * plugin was mapped.
 */
#define _GNU_SOURCE
#include "../workload.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>

#define EACH 16
#define VISITS 20

static const char *plugins[2];
static void *loaded;
static struct site sites[2] = {{.function = "csv_export"}, {.function = "xml_import"}};

static void load(int number)
{
	struct link_map *map;

	loaded = dlopen(plugins[number], RTLD_NOW | RTLD_LOCAL);
	if (!loaded || dlinfo(loaded, RTLD_DI_LINKMAP, &map))
		WORKLOAD_FATAL("%s", dlerror());
	workload_note(sites[number].function, (double)map->l_addr);
}

static void leak(int number)
{
	void *(*run)(size_t) = dlsym(loaded, "plugin_run");

	for (int i = 0; i < EACH; i++)
		block_allocated(&sites[number], run(4096), 4096);
}

static void unload(void)
{
	dlclose(loaded);
	loaded = NULL;
}

static void visit(int number)
{
	load(number);
	leak(number);
	unload();
}

static void step(long number)
{
	switch (number) {
	case 1:
	case 2:
		visit((int)number - 1);
		break;
	case 3:
	case 4:
		load((int)number - 3);
		leak((int)number - 3);
		break;
	case 5:
		unload();
		break;
	case 6:
		for (int i = 0; i < VISITS; i++) {
			visit(1);
			/* Takes its place. */
			mmap(NULL, 1 << 16, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		}
	}
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	plugins[0] = argv[1];
	plugins[1] = argv[2];
	/* One-time allocations of dlopen have been made by now. */
	load(0);
	unload();
	return workload_serve(step);
}
