// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * flood - one process that does one thing as often as it can, until it is killed.
 *
 *     flood mmap      maps and unmaps, in four threads
 *     flood pieces    cuts its address space into as many pieces as the kernel lets it have
 *     flood exec      executes itself, over and over
 *     flood fork      has children that execute and end, some at a time
 *     flood threads   makes threads that allocate and end
 *     flood stacks    allocates from as many call stacks as there is room for, and many more
 *     flood sites N   allocates from each of N call stacks, twice a second
 *     flood page F    has a variable, so to say, that is a page of file F, and maps memory all the time
 *     flood late F    opens file F; at each SIGUSR1 maps it to execute it, and allocates from new code
 *     flood files D   maps all files of a directory to execute them, and goes on mapping one of them
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define KEEP(pointer) __asm__ volatile("" : : "r"(pointer) : "memory")

static void *map_and_unmap(void *unused)
{
	(void)unused;
	for (;;) {
		char *pages = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (pages != MAP_FAILED)
			munmap(pages, 16 * PAGE);
	}
	return NULL;
}

static void *cut_into_pieces(void *unused)
{
	const unsigned long pages = 60000;
	char *all = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	(void)unused;
	for (;;) {
		for (unsigned long page = 0; page < pages; page += 2)
			mprotect(all + page * PAGE, PAGE, PROT_READ | PROT_WRITE);
		mprotect(all, pages * PAGE, PROT_NONE);
	}
	return NULL;
}

static void *allocate_once(void *unused)
{
	(void)unused;
	KEEP(malloc(101));
	return NULL;
}

static void make_threads(void)
{
	for (;;) {
		pthread_t threads[16];
		int made = 0;

		while (made < 16 && !pthread_create(&threads[made], NULL, allocate_once, NULL))
			made++;
		while (made)
			pthread_join(threads[--made], NULL);
	}
}

/* Each bit of `path` is a turn: two call sites, so that 2^depth stacks lead to the same malloc. */
__attribute__((noipa)) static void *descend(uint64_t path, int depth)
{
	void *block;

	if (!depth)
		return malloc(24);
	if (path & 1) {
		block = descend(path >> 1, depth - 1);
		__asm__ volatile("nop");
	} else {
		block = descend(path >> 1, depth - 1);
		__asm__ volatile("");
	}
	return block;
}

static void many_stacks(void)
{
	for (uint64_t path = 0;; path++)
		KEEP(descend(path, 24));
}

static void many_sites(uint64_t sites)
{
	for (;;) {
		for (uint64_t path = 0; path < sites; path++)
			KEEP(descend(path, 24));
		usleep(500000);
	}
}

static void have_children(const char *program)
{
	for (;;) {
		for (int child = 0; child < 8; child++)
			if (fork() == 0) {
				execl(program, program, "once", NULL);
				_exit(1);
			}
		while (wait(NULL) > 0)
			;
	}
}

static void map_files(const char *directory)
{
	DIR *all = opendir(directory);
	struct dirent *entry;
	int file = -1;

	while (all && (entry = readdir(all))) {
		char path[4096];

		snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
		if (entry->d_type != DT_REG)
			continue;
		close(file);
		file = open(path, O_RDONLY | O_NONBLOCK);
		mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
	}
	for (;;) {
		mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
		KEEP(malloc(101));
		usleep(100000);
	}
}

static void have_page(const char *file)
{
	int descriptor = open(file, O_RDWR);

	if (descriptor < 0)
		descriptor = open(file, O_RDONLY);
	if (mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0) == MAP_FAILED)
		_exit(1);
	for (;;) {
		munmap(mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE);
		KEEP(malloc(101));
		usleep(1000);
	}
}

/* malloc(101), called from generated code, so that the mappings have to be read again for its stack. */
static void allocate_from_new_code(void)
{
	/* push rbp; mov rbp, rsp; mov rax, rdi; mov edi, 101; call rax; pop rbp; ret */
	static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0xbf, 101,
					     0,    0,    0,    0xff, 0xd0, 0x5d, 0xc3};
	void *place = mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *(*call)(void *(*)(size_t)) = (void *(*)(void *(*)(size_t)))place;

	memcpy(place, code, sizeof(code));
	KEEP(call(malloc));
}

static void map_late(const char *path)
{
	const struct timespec tenth = {.tv_nsec = 100000000};
	int file = open(path, O_RDONLY);
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	for (;;) {
		KEEP(malloc(101));
		if (sigtimedwait(&signals, NULL, &tenth) == SIGUSR1) {
			mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
			allocate_from_new_code();
		}
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	KEEP(malloc(101));
	if (!strcmp(what, "once"))
		return 0;
	if (!strcmp(what, "exec"))
		execv("/proc/self/exe", argv);
	if (!strcmp(what, "fork"))
		have_children(argv[0]);
	if (!strcmp(what, "threads"))
		make_threads();
	if (!strcmp(what, "stacks"))
		many_stacks();
	if (!strcmp(what, "sites") && argc > 2)
		many_sites(strtoul(argv[2], NULL, 10));
	if (!strcmp(what, "files") && argc > 2)
		map_files(argv[2]);
	if (!strcmp(what, "page") && argc > 2)
		have_page(argv[2]);
	if (!strcmp(what, "late") && argc > 2)
		map_late(argv[2]);
	if (!strcmp(what, "pieces"))
		cut_into_pieces(NULL);
	if (!strcmp(what, "mmap")) {
		pthread_t thread;

		for (int other = 0; other < 3; other++)
			pthread_create(&thread, NULL, map_and_unmap, NULL);
		map_and_unmap(NULL);
	}
	fprintf(stderr, "flood mmap|pieces|exec|fork|threads|stacks|sites N|page FILE|late FILE|files DIRECTORY\n");
	return 2;
}
