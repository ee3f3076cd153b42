// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * every_function - 23 blocks kept and 101 freed through every way that glibc has to allocate, on
 * several threads, with each way to fail.
 *
 *     every_function [THREADS [SKIP,...]]
 *
 * Each `take_X` is a site. A thread keeps 23 blocks of each kind and allocates 101 more, which the next
 * thread frees. Then come the stories of realloc, and the calls that fail or do nothing. SKIP names kinds
 * to leave out ("pvalloc,memalign"), for peers that do not know all functions.
 *
 * Notes: frees_of_earlier_blocks (blocks from before "ready" that were freed or reallocated),
 * reallocs_in_place, reallocs_moved.
 */
#define _GNU_SOURCE
#include "workload.h"

#include <errno.h>
#include <malloc.h>

enum { KEPT = 23, PASSED = 101, MAX_KINDS = 16 };

/* Opaque to the compiler, so that it neither warns about these sizes nor folds the calls. */
static volatile size_t too_much = SIZE_MAX / 2;
static volatile size_t zero;
static volatile size_t bad_alignment = 3;
static volatile size_t page = 4096;

static pthread_barrier_t phase;

/* -- one site for each kind --------------------------------------------------------------------------- */

#define SITE(name) static struct site site_##name = {.function = #name}

SITE(take_malloc);
SITE_FUNCTION static struct block take_malloc(size_t size)
{
	return block_allocated(&site_take_malloc, malloc(size), size);
}

SITE(take_nothing);
SITE_FUNCTION static struct block take_nothing(size_t size)
{
	(void)size;
	return block_allocated(&site_take_nothing, malloc(zero), 0);
}

SITE(take_calloc);
SITE_FUNCTION static struct block take_calloc(size_t size)
{
	return block_allocated(&site_take_calloc, calloc(size, 3), size * 3);
}

SITE(take_realloc);
SITE_FUNCTION static struct block take_realloc(size_t size)
{
	return block_allocated(&site_take_realloc, realloc(NULL, size), size);
}

SITE(take_reallocarray);
SITE_FUNCTION static struct block take_reallocarray(size_t size)
{
	return block_allocated(&site_take_reallocarray, reallocarray(NULL, size, 5), size * 5);
}

SITE(take_posix_memalign);
SITE_FUNCTION static struct block take_posix_memalign(size_t size)
{
	void *address = NULL;

	if (posix_memalign(&address, 64, size))
		WORKLOAD_FATAL("posix_memalign of %zu failed", size);
	return block_allocated(&site_take_posix_memalign, address, size);
}

SITE(take_aligned_alloc);
SITE_FUNCTION static struct block take_aligned_alloc(size_t size)
{
	size = (size + 63) & ~(size_t)63; /* C11 requires a multiple of the alignment */
	return block_allocated(&site_take_aligned_alloc, aligned_alloc(64, size), size);
}

SITE(take_memalign);
SITE_FUNCTION static struct block take_memalign(size_t size)
{
	return block_allocated(&site_take_memalign, memalign(256, size), size);
}

SITE(take_valloc);
SITE_FUNCTION static struct block take_valloc(size_t size)
{
	return block_allocated(&site_take_valloc, valloc(size), size);
}

SITE(take_pvalloc);
SITE_FUNCTION static struct block take_pvalloc(size_t size)
{
	(void)size; /* whole pages, so that the requested size is the size of the block */
	return block_allocated(&site_take_pvalloc, pvalloc(page), page);
}

SITE(take_strdup);
SITE_FUNCTION static struct block take_strdup(size_t size)
{
	char text[512];

	memset(text, 's', size);
	text[size] = 0;
	return block_allocated(&site_take_strdup, strdup(text), size + 1);
}

static struct site site_take_asprintf = {.function = "take_asprintf", .allocated_unknown = 1};
SITE_FUNCTION static struct block take_asprintf(size_t size)
{
	char *text = NULL;
	int length = asprintf(&text, "%0*d", (int)size, 7);

	return block_allocated(&site_take_asprintf, text, (size_t)length + 1);
}

static struct {
	const char *name;
	struct block (*take)(size_t size);
	int skipped;
} kinds[] = {
	{"malloc", take_malloc, 0},
	{"nothing", take_nothing, 0},
	{"calloc", take_calloc, 0},
	{"realloc", take_realloc, 0},
	{"reallocarray", take_reallocarray, 0},
	{"posix_memalign", take_posix_memalign, 0},
	{"aligned_alloc", take_aligned_alloc, 0},
	{"memalign", take_memalign, 0},
	{"valloc", take_valloc, 0},
	{"pvalloc", take_pvalloc, 0},
	{"strdup", take_strdup, 0},
	{"asprintf", take_asprintf, 0},
	{"realloc_to_nothing", NULL, 0}, /* a story of realloc, not a site */
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static struct block passed[WORKLOAD_MAX_THREADS][MAX_KINDS][PASSED];

static int is_skipped(const char *name)
{
	for (int kind = 0; kind < KINDS; kind++)
		if (!strcmp(kinds[kind].name, name))
			return kinds[kind].skipped;
	return 0;
}

SITE_FUNCTION static void give_back(struct block *block)
{
	free(block->address);
	block_freed(block);
}

/* -- the stories of realloc: where the block comes from, and where it is afterwards ---------------------- */

static long in_place, moved;

static void count_move(void *before, void *after)
{
	__atomic_add_fetch(before == after ? &in_place : &moved, 1, __ATOMIC_RELAXED);
}

SITE(take_to_reallocate);
SITE_FUNCTION static struct block take_to_reallocate(size_t size)
{
	return block_allocated(&site_take_to_reallocate, malloc(size), size);
}

SITE(reallocate_larger);
SITE_FUNCTION static struct block reallocate_larger(struct block old, size_t size)
{
	void *address = realloc(old.address, size);

	count_move(old.address, address);
	block_freed(&old);
	return block_allocated(&site_reallocate_larger, address, size);
}

SITE(reallocate_smaller);
SITE_FUNCTION static struct block reallocate_smaller(struct block old, size_t size)
{
	void *address = realloc(old.address, size);

	count_move(old.address, address);
	block_freed(&old);
	return block_allocated(&site_reallocate_smaller, address, size);
}

SITE(reallocate_array);
SITE_FUNCTION static struct block reallocate_array(struct block old, size_t members)
{
	void *address = reallocarray(old.address, members, 7);

	count_move(old.address, address);
	block_freed(&old);
	return block_allocated(&site_reallocate_array, address, members * 7);
}

SITE_FUNCTION static void reallocate_to_nothing(struct block old)
{
	if (realloc(old.address, zero))
		WORKLOAD_FATAL("realloc(p, 0) gave a block: this libc does not free");
	block_freed(&old);
}

SITE_FUNCTION static void reallocate_too_much(struct block old)
{
	if (realloc(old.address, too_much + 1))
		WORKLOAD_FATAL("realloc of a huge size succeeded");
	memset(old.address, 1, old.size); /* the block is still the program's */
}

SITE_FUNCTION static void reallocate_array_overflow(struct block old)
{
	if (reallocarray(old.address, too_much, 4))
		WORKLOAD_FATAL("reallocarray did not see the overflow");
	memset(old.address, 1, old.size);
}

static void realloc_stories(void)
{
	struct block block;

	for (int i = 0; i < KEPT; i++) {
		block = take_to_reallocate(24);
		reallocate_larger(block, 4001 + (size_t)i);
		block = take_to_reallocate(1 << 20); /* by mmap, so it grows by mremap */
		block = reallocate_larger(block, 3 << 20);
		reallocate_smaller(block, 200001);
		block = take_to_reallocate(1000 + (size_t)i);
		reallocate_smaller(block, 11);
		block = take_to_reallocate(100);
		reallocate_larger(block, 101); /* fits where it is */
		if (!is_skipped("realloc_to_nothing"))
			reallocate_to_nothing(take_to_reallocate(211));
		reallocate_too_much(take_to_reallocate(37));
		if (!is_skipped("reallocarray")) {
			reallocate_array(take_to_reallocate(13), 101);
			reallocate_array_overflow(take_to_reallocate(41));
		}
	}
}

/* -- calls that return nothing --------------------------------------------------------------------------- */

SITE_FUNCTION static void fail_malloc(void)
{
	if (malloc(too_much + 1))
		WORKLOAD_FATAL("malloc of a huge size succeeded");
}

SITE_FUNCTION static void fail_calloc(void)
{
	if (calloc(too_much, 4))
		WORKLOAD_FATAL("calloc did not see the overflow");
}

SITE_FUNCTION static void fail_reallocarray(void)
{
	if (reallocarray(NULL, too_much, 4))
		WORKLOAD_FATAL("reallocarray did not see the overflow");
}

SITE_FUNCTION static void fail_posix_memalign(void)
{
	void *address = (void *)0x1234; /* left unchanged: the out-parameter must not be read */

	if (posix_memalign(&address, bad_alignment, 64) != EINVAL)
		WORKLOAD_FATAL("posix_memalign took an alignment of 3");
	if (posix_memalign(&address, 64, too_much + 1) != ENOMEM)
		WORKLOAD_FATAL("posix_memalign of a huge size succeeded");
}

SITE_FUNCTION static void fail_aligned_alloc(void)
{
	if (aligned_alloc(64, (too_much + 1) & ~(size_t)63))
		WORKLOAD_FATAL("aligned_alloc of a huge size succeeded");
}

SITE_FUNCTION static void free_nothing(void)
{
	free(NULL);
	NO_TAIL_CALL();
}

static void failures(void)
{
	for (int i = 0; i < KEPT; i++) {
		fail_malloc();
		fail_calloc();
		fail_posix_memalign();
		fail_aligned_alloc();
		if (!is_skipped("reallocarray"))
			fail_reallocarray();
	}
	for (int i = 0; i < PASSED; i++)
		free_nothing();
}

/* -- what a thread does ------------------------------------------------------------------------------------ */

static void body(int thread)
{
	int next = (thread + 1) % workload_thread_count;

	for (int kind = 0; kind < KINDS; kind++) {
		if (kinds[kind].skipped || !kinds[kind].take)
			continue;
		for (int i = 0; i < KEPT; i++)
			kinds[kind].take(24 + (size_t)(i * 3 + thread));
		for (int i = 0; i < PASSED; i++)
			passed[thread][kind][i] = kinds[kind].take(8 + (size_t)(i * 2 + thread));
	}
	pthread_barrier_wait(&phase);
	for (int kind = 0; kind < KINDS; kind++)
		for (int i = 0; i < PASSED && passed[next][kind][i].address; i++)
			give_back(&passed[next][kind][i]);
	realloc_stories();
	failures();
}

/* -- blocks from before "ready", which are unknown to every later attach ----------------------------------- */

static void *earlier[KEPT];
static int earlier_freed;
SITE(reallocate_earlier);

SITE_FUNCTION static void reallocate_earlier(void **address)
{
	*address = block_allocated(&site_reallocate_earlier, realloc(*address, 307), 307).address;
}

static void step(long number)
{
	(void)number;
	if (!earlier_freed) {
		for (int i = 0; i < KEPT; i++) {
			if (i < 7)
				reallocate_earlier(&earlier[i]);
			else
				free(earlier[i]);
		}
		earlier_freed = KEPT;
	}
	workload_run_threads();
	workload_note("frees_of_earlier_blocks", earlier_freed);
	workload_note("reallocs_in_place", (double)in_place);
	workload_note("reallocs_moved", (double)moved);
}

int main(int argc, char **argv)
{
	int threads = (int)workload_argument(argc, argv, 1, 3);

	for (char *name = argc > 2 ? strtok(argv[2], ",") : NULL; name; name = strtok(NULL, ",")) {
		int known = 0;

		for (int kind = 0; kind < KINDS; kind++)
			if (!strcmp(kinds[kind].name, name))
				known = kinds[kind].skipped = 1;
		if (!known)
			WORKLOAD_FATAL("no kind is called %s", name);
	}
	for (int i = 0; i < KEPT; i++)
		earlier[i] = malloc(51);
	pthread_barrier_init(&phase, NULL, (unsigned)threads);
	workload_start_threads(threads, body);
	return workload_serve(step);
}
