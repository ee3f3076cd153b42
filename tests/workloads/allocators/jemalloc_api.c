// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * jemalloc_api - the functions that jemalloc adds to those of the C library.
 *
 *     jemalloc_api [THREADS]
 *
 * Notes: resized_in_place, not_resized (of xallocx); allocator_bytes, what jemalloc itself says has become
 * outstanding since the first step began ("stats.allocated": rounded up to its size classes).
 */
#define _GNU_SOURCE
#include "kinds.h"

/* jemalloc/jemalloc.h */
#define MALLOCX_ALIGN_64 6
#define MALLOCX_ZERO 0x40
#define MALLOCX_TCACHE_NONE (1 << 8)
void *mallocx(size_t size, int flags);
void *rallocx(void *block, size_t size, int flags);
size_t xallocx(void *block, size_t size, size_t extra, int flags);
void dallocx(void *block, int flags);
void sdallocx(void *block, size_t size, int flags);
int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size);

static volatile size_t too_much = SIZE_MAX / 2;
static long resized, not_resized;

KIND(mallocx, mallocx(size, 0), dallocx(p, 0))
KIND(mallocx_zero, mallocx(size, MALLOCX_ZERO), sdallocx(p, size, 0))
KIND(mallocx_aligned, mallocx(size, MALLOCX_ALIGN_64), sdallocx(p, size, MALLOCX_ALIGN_64))
KIND(mallocx_uncached, mallocx(size, MALLOCX_TCACHE_NONE), dallocx(p, MALLOCX_TCACHE_NONE))
KIND(malloc_dallocx, malloc(size), dallocx(p, 0))
KIND(mallocx_free, mallocx(size, 0), free(p))

static const struct kind listed[] = {
	LISTED(mallocx),	  LISTED(mallocx_zero),	  LISTED(mallocx_aligned),
	LISTED(mallocx_uncached), LISTED(malloc_dallocx), LISTED(mallocx_free),
};

static struct site site_take = SITE_OF("take");
SITE_FUNCTION static struct block take(size_t size)
{
	return block_allocated(&site_take, mallocx(size, 0), size);
}

static struct site site_reallocate = SITE_OF("reallocate");
SITE_FUNCTION static struct block reallocate(struct block old, size_t size, int flags)
{
	void *address = rallocx(old.address, size, flags);

	block_freed(&old);
	return block_allocated(&site_reallocate, address, size);
}

SITE_FUNCTION static void reallocate_too_much(struct block old)
{
	if (rallocx(old.address, too_much, 0))
		WORKLOAD_FATAL("rallocx of a huge size succeeded");
	memset(old.address, 1, old.size); /* the block is still the program's */
}

/* A block that is resized in place leaves its old site and belongs to this one. */
static struct site site_resize = SITE_OF("resize");
SITE_FUNCTION static struct block resize(struct block old, size_t size, size_t extra)
{
	void *address = old.address;

	if (xallocx(address, size, extra, 0) < size) {
		__atomic_add_fetch(&not_resized, 1, __ATOMIC_RELAXED);
		return old;
	}
	__atomic_add_fetch(&resized, 1, __ATOMIC_RELAXED);
	block_freed(&old);
	return block_allocated(&site_resize, address, size);
}

static void stories(void)
{
	struct block block;

	reallocate(take(24), 4001, 0);
	reallocate(reallocate(take(1 << 20), 3 << 20, 0), 200001, MALLOCX_ZERO);
	reallocate(take(100), 101, MALLOCX_ALIGN_64);
	reallocate_too_much(take(37));
	resize(take(100), 112, 0);	     /* the same size class */
	resize(take(112), 97, 0);	     /* smaller, in the same class */
	resize(take(100), 5000, 0);	     /* it cannot grow */
	resize(take(5000), 100, 0);	     /* stays at the size, which is enough */
	resize(take(200), 201, 1 << 20);     /* the rest is unavailable */
	block = resize(take(1 << 20), 40000, 0); /* pages are returned */
	block = resize(block, 80000, 0);	     /* and perhaps taken again */
	dallocx(block.address, 0);
	block_freed(&block);
}

static double allocator_bytes(void)
{
	uint64_t epoch = 1;
	size_t bytes = 0, size = sizeof(bytes), epoch_size = sizeof(epoch);

	mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
	if (mallctl("epoch", &epoch, &epoch_size, &epoch, epoch_size) ||
	    mallctl("stats.allocated", &bytes, &size, NULL, 0))
		WORKLOAD_FATAL("jemalloc gives no statistics");
	return (double)bytes;
}

static void step(long number)
{
	static double before;

	(void)number;
	if (!before)
		before = allocator_bytes();
	kinds_step();
	workload_note("resized_in_place", (double)resized);
	workload_note("not_resized", (double)not_resized);
	workload_note("allocator_bytes", allocator_bytes() - before);
}

int main(int argc, char **argv)
{
	kinds_start(argc, argv, listed, sizeof(listed) / sizeof(listed[0]), stories);
	return workload_serve(step);
}
