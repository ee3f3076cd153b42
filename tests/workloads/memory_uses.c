// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * memory_uses: each `run` takes memory of every use, in amounts that the notes tell, in bytes.
 *
 * Notes NAME_virtual and NAME_resident are sums over all steps: heap, mmap, commit, stacks (virtual only),
 * files, jit, shared, reserved. baseline_stacks is the size of the stacks of 3 threads from before "ready".
 * Mappings and blocks that malloc maps alternate, so that the kernel makes one mapping of them.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define PAGE 4096L

enum { BASELINE_STACKS = 3, STACK_PAGES = 67 };

static struct site site_heap = {.function = "take_memory"};

static double heap_virtual, mmap_virtual, commit_virtual, stacks_virtual, files_virtual, jit_virtual,
	shared_virtual, reserved_virtual;
static double heap_resident, mmap_resident, commit_resident, files_resident, jit_resident, shared_resident;

static char *map(long pages, int protection, int flags, int file)
{
	char *address = mmap(NULL, (size_t)(pages * PAGE), protection, flags, file, 0);

	if (address == MAP_FAILED)
		WORKLOAD_FATAL("mmap of %ld pages failed", pages);
	return address;
}

static void touch(char *address, long pages)
{
	for (long i = 0; i < pages; i++)
		address[i * PAGE] = 1;
}

/* Reads; the pages must have contents. */
static void look_at(const volatile char *address, long pages)
{
	for (long i = 0; i < pages; i++)
		(void)address[i * PAGE];
}

SITE_FUNCTION static void take_memory(void)
{
	char *block;

	for (int i = 0; i < 23; i++) {
		touch(map(101, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 13);
		mmap_virtual += 101 * PAGE;
		mmap_resident += 13 * PAGE;
		if (i % 3)
			continue;
		/* Above the threshold, so malloc maps it: with 16 bytes before it, which take a further page. */
		block = malloc(211 * PAGE);
		touch(block, 211);
		block[211 * PAGE - 1] = 1;
		site_allocated(&site_heap, 1, 211 * PAGE);
		heap_virtual += 212 * PAGE;
		heap_resident += 212 * PAGE;
	}
}

SITE_FUNCTION static void commit(void)
{
	char *reserved = map(1009, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);

	if (mprotect(reserved + 101 * PAGE, 307 * PAGE, PROT_READ | PROT_WRITE))
		WORKLOAD_FATAL("mprotect failed");
	touch(reserved + 101 * PAGE, 211);
	commit_virtual += 307 * PAGE;
	commit_resident += 211 * PAGE;
	reserved_virtual += (1009 - 307) * PAGE;
}

static void map_a_file(void)
{
	static char page[PAGE];
	char path[] = "/tmp/memory_uses-XXXXXX";
	int file = mkstemp(path);

	unlink(path);
	for (int i = 0; i < 53; i++)
		if (write(file, page, PAGE) != PAGE)
			WORKLOAD_FATAL("no room in /tmp");
	look_at(map(53, PROT_READ, MAP_PRIVATE, file), 53);
	close(file);
	files_virtual += 53 * PAGE;
	files_resident += 53 * PAGE;
}

static void map_code(void)
{
	int file = memfd_create("doublemapper", 0);

	touch(map(61, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1), 37);
	if (ftruncate(file, 41 * PAGE))
		WORKLOAD_FATAL("no memory file");
	touch(map(41, PROT_READ | PROT_WRITE, MAP_SHARED, file), 17);
	look_at(map(41, PROT_READ | PROT_EXEC, MAP_SHARED, file), 17);
	close(file);
	jit_virtual += (61 + 2 * 41) * PAGE;
	jit_resident += (37 + 2 * 17) * PAGE;
}

static void map_shared(void)
{
	touch(map(59, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1), 31);
	shared_virtual += 59 * PAGE;
	shared_resident += 31 * PAGE;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double baseline_stacks;

static void *stay(void *is_baseline)
{
	pthread_attr_t attributes;
	void *address;
	size_t size;

	if (is_baseline) {
		pthread_getattr_np(pthread_self(), &attributes);
		pthread_attr_getstack(&attributes, &address, &size);
		pthread_mutex_lock(&lock);
		baseline_stacks += (double)size;
		pthread_mutex_unlock(&lock);
		pthread_attr_destroy(&attributes);
	}
	for (;;)
		pause();
	return NULL;
}

static void start_thread(size_t guard_bytes, int is_baseline)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_PAGES * PAGE);
	pthread_attr_setguardsize(&attributes, guard_bytes);
	if (pthread_create(&thread, &attributes, stay, (void *)(intptr_t)is_baseline))
		WORKLOAD_FATAL("pthread_create failed");
	pthread_attr_destroy(&attributes);
}

static void step(long number)
{
	(void)number;
	take_memory();
	commit();
	map_a_file();
	map_code();
	map_shared();
	start_thread(0, 0);
	stacks_virtual += STACK_PAGES * PAGE;
	workload_note("heap_virtual", heap_virtual);
	workload_note("heap_resident", heap_resident);
	workload_note("mmap_virtual", mmap_virtual);
	workload_note("mmap_resident", mmap_resident);
	workload_note("commit_virtual", commit_virtual);
	workload_note("commit_resident", commit_resident);
	workload_note("stacks_virtual", stacks_virtual);
	workload_note("files_virtual", files_virtual);
	workload_note("files_resident", files_resident);
	workload_note("jit_virtual", jit_virtual);
	workload_note("jit_resident", jit_resident);
	workload_note("shared_virtual", shared_virtual);
	workload_note("shared_resident", shared_resident);
	workload_note("reserved_virtual", reserved_virtual);
	workload_note("baseline_stacks", baseline_stacks);
}

int main(void)
{
	char *room;

	/* Touched memory is resident. */
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	for (int i = 0; i < BASELINE_STACKS; i++)
		start_thread(PAGE, 1);
	while (1) {
		pthread_mutex_lock(&lock);
		if (baseline_stacks >= (double)(BASELINE_STACKS * (STACK_PAGES - 1) * PAGE))
			break;
		pthread_mutex_unlock(&lock);
		usleep(1000);
	}
	pthread_mutex_unlock(&lock);
	/* The C library's own small blocks fit into memory that is resident already. */
	room = malloc(100000);
	memset(room, 1, 100000);
	free(room);
	return workload_serve(step);
}
