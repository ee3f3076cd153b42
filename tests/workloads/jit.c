// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * jit - calls malloc from code that it wrote itself, named by a perf map as JITs do.
 *
 *     jit [DIRECTORY_OF_THE_PERF_MAP]                   default /tmp
 *
 * Two functions with a frame pointer are written to an anonymous executable mapping: LeakyTemplate::render
 * keeps 23 blocks in each step, TidyTemplate::render allocates 101 that the program frees. The map is
 * DIRECTORY/perf-PID.map and is removed at exit.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <fcntl.h>
#include <sys/mman.h>

#ifndef __x86_64__
#error "the machine code in here is x86-64"
#endif

enum { KEPT = 23, FREED = 101, LEAKY_AT = 0x40, TIDY_AT = 0x80 };

static struct site site_leaky = {.function = "LeakyTemplate::render"};
static struct site site_tidy = {.function = "TidyTemplate::render"};

typedef void *jitted(size_t size);

/* push %rbp; mov %rsp,%rbp; movabs $malloc,%rax; call *%rax; pop %rbp; ret */
static size_t emit(unsigned char *code)
{
	static const unsigned char before[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8};
	static const unsigned char after[] = {0xff, 0xd0, 0x5d, 0xc3};
	void *(*target)(size_t) = malloc;

	memcpy(code, before, sizeof(before));
	memcpy(code + sizeof(before), &target, sizeof(target));
	memcpy(code + sizeof(before) + sizeof(target), after, sizeof(after));
	return sizeof(before) + sizeof(target) + sizeof(after);
}

static unsigned char *code;
static char map_path[256];

static void remove_map(void)
{
	unlink(map_path);
}

static void write_map(const char *directory, size_t length)
{
	char text[256];
	int file, size;

	snprintf(map_path, sizeof(map_path), "%s/perf-%d.map", directory, getpid());
	size = snprintf(text, sizeof(text), "%lx %zx %s\n%lx %zx %s\n", (unsigned long)code + LEAKY_AT, length,
			site_leaky.function, (unsigned long)code + TIDY_AT, length, site_tidy.function);
	file = open(map_path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0644);
	if (file < 0 || write(file, text, (size_t)size) != size)
		WORKLOAD_FATAL("%s cannot be written", map_path);
	close(file);
	atexit(remove_map);
}

SITE_FUNCTION static void render_templates(void)
{
	jitted *leaky = (jitted *)(uintptr_t)(code + LEAKY_AT), *tidy = (jitted *)(uintptr_t)(code + TIDY_AT);

	for (int i = 0; i < KEPT; i++)
		KEEP(block_allocated(&site_leaky, leaky(607), 607).address);
	for (int i = 0; i < FREED; i++) {
		struct block block = block_allocated(&site_tidy, tidy(53), 53);

		free(block.address);
		block_freed(&block);
	}
}

static void step(long number)
{
	(void)number;
	render_templates();
}

int main(int argc, char **argv)
{
	size_t length;

	code = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED)
		WORKLOAD_FATAL("mmap failed");
	emit(code + LEAKY_AT);
	length = emit(code + TIDY_AT);
	if (mprotect(code, 4096, PROT_READ | PROT_EXEC))
		WORKLOAD_FATAL("executable memory was refused");
	write_map(argc > 1 ? argv[1] : "/tmp", length);
	return workload_serve(step);
}
