// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * tcmalloc_api - the functions that gperftools' tcmalloc adds to those of the C library.
 *
 *     tcmalloc_api [THREADS]
 *
 * Notes: allocator_bytes, what tcmalloc itself says has become outstanding since the first step began
 * ("generic.current_allocated_bytes": rounded up to its size classes).
 */
#define _GNU_SOURCE
#include "kinds.h"

/* gperftools/tcmalloc.h, malloc_extension_c.h */
void *tc_malloc(size_t size);
void *tc_malloc_skip_new_handler(size_t size);
void *tc_calloc(size_t count, size_t size);
void *tc_realloc(void *p, size_t size);
void *tc_memalign(size_t alignment, size_t size);
int tc_posix_memalign(void **p, size_t alignment, size_t size);
void *tc_valloc(size_t size);
void *tc_new(size_t size);
void *tc_newarray(size_t size);
void *tc_new_aligned(size_t size, size_t alignment);
void *tc_newarray_aligned(size_t size, size_t alignment);
void tc_free(void *p);
void tc_free_sized(void *p, size_t size);
void tc_cfree(void *p);
void tc_delete(void *p);
void tc_delete_sized(void *p, size_t size);
void tc_delete_aligned(void *p, size_t alignment);
void tc_delete_sized_aligned(void *p, size_t size, size_t alignment);
void tc_deletearray(void *p);
void tc_deletearray_sized(void *p, size_t size);
int MallocExtension_GetNumericProperty(const char *property, size_t *value);

static volatile size_t too_much = SIZE_MAX / 2;

#define POSIX_MEMALIGN(size)                                                                             \
	({                                                                                               \
		void *address_ = NULL;                                                                   \
                                                                                                         \
		tc_posix_memalign(&address_, UNIT, size) ? NULL : address_;                              \
	})

KIND(malloc, tc_malloc(size), tc_free(p))
KIND(malloc_sized, tc_malloc(size), tc_free_sized(p, size))
KIND(malloc_skip_new_handler, tc_malloc_skip_new_handler(size), tc_cfree(p))
KIND(calloc, tc_calloc(size / 8, 8), tc_free(p))
KIND(realloc, tc_realloc(NULL, size), tc_free(p))
KIND(memalign, tc_memalign(UNIT, size), tc_free(p))
KIND(posix_memalign, POSIX_MEMALIGN(size), tc_free(p))
KIND(valloc, tc_valloc(size), tc_free(p))
KIND(new, tc_new(size), tc_delete(p))
KIND(new_sized, tc_new(size), tc_delete_sized(p, size))
KIND(new_aligned, tc_new_aligned(size, UNIT), tc_delete_aligned(p, UNIT))
KIND(new_aligned_sized, tc_new_aligned(size, UNIT), tc_delete_sized_aligned(p, size, UNIT))
KIND(newarray, tc_newarray(size), tc_deletearray(p))
KIND(newarray_sized, tc_newarray(size), tc_deletearray_sized(p, size))
KIND(c_malloc, malloc(size), tc_free(p))
KIND(c_free, tc_malloc(size), free(p))

static const struct kind listed[] = {
	LISTED(malloc),	     LISTED(malloc_sized),	LISTED(malloc_skip_new_handler),
	LISTED(calloc),	     LISTED(realloc),		LISTED(memalign),
	LISTED(posix_memalign), LISTED(valloc),		LISTED(new),
	LISTED(new_sized),   LISTED(new_aligned),	LISTED(new_aligned_sized),
	LISTED(newarray),    LISTED(newarray_sized),	LISTED(c_malloc),
	LISTED(c_free),
};

static struct site site_take = SITE_OF("take");
SITE_FUNCTION static struct block take(size_t size)
{
	return block_allocated(&site_take, tc_malloc(size), size);
}

static struct site site_reallocate = SITE_OF("reallocate");
SITE_FUNCTION static struct block reallocate(struct block old, size_t size)
{
	void *address = tc_realloc(old.address, size);

	block_freed(&old);
	return block_allocated(&site_reallocate, address, size);
}

SITE_FUNCTION static void reallocate_too_much(struct block old)
{
	if (tc_realloc(old.address, too_much))
		WORKLOAD_FATAL("tc_realloc of a huge size succeeded");
	memset(old.address, 1, old.size);
}

static void stories(void)
{
	reallocate(take(24), 4001);
	reallocate(reallocate(take(1 << 20), 3 << 20), 200001);
	reallocate(take(100), 101);
	reallocate_too_much(take(37));
}

static double allocator_bytes(void)
{
	size_t bytes = 0;

	if (!MallocExtension_GetNumericProperty("generic.current_allocated_bytes", &bytes))
		WORKLOAD_FATAL("tcmalloc gives no statistics");
	return (double)bytes;
}

static void step(long number)
{
	static double before;

	(void)number;
	if (!before)
		before = allocator_bytes();
	kinds_step();
	workload_note("allocator_bytes", allocator_bytes() - before);
}

int main(int argc, char **argv)
{
	kinds_start(argc, argv, listed, sizeof(listed) / sizeof(listed[0]), stories);
	return workload_serve(step);
}
