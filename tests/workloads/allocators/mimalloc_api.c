// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * mimalloc_api - the functions that mimalloc adds to those of the C library.
 *
 *     mimalloc_api [THREADS]
 */
#define _GNU_SOURCE
#include "kinds.h"

/* mimalloc.h */
typedef struct mi_heap_s mi_heap_t;
mi_heap_t *mi_heap_get_default(void);
void *mi_malloc(size_t size);
void *mi_malloc_small(size_t size);
void *mi_zalloc(size_t size);
void *mi_zalloc_small(size_t size);
void *mi_calloc(size_t count, size_t size);
void *mi_mallocn(size_t count, size_t size);
void *mi_realloc(void *p, size_t size);
void *mi_reallocn(void *p, size_t count, size_t size);
void *mi_reallocf(void *p, size_t size);
void *mi_reallocarray(void *p, size_t count, size_t size);
void *mi_rezalloc(void *p, size_t size);
void *mi_recalloc(void *p, size_t count, size_t size);
void *mi_expand(void *p, size_t size);
char *mi_strdup(const char *text);
char *mi_strndup(const char *text, size_t length);
void *mi_malloc_aligned(size_t size, size_t alignment);
void *mi_malloc_aligned_at(size_t size, size_t alignment, size_t offset);
void *mi_zalloc_aligned(size_t size, size_t alignment);
void *mi_zalloc_aligned_at(size_t size, size_t alignment, size_t offset);
void *mi_calloc_aligned(size_t count, size_t size, size_t alignment);
void *mi_calloc_aligned_at(size_t count, size_t size, size_t alignment, size_t offset);
void *mi_realloc_aligned(void *p, size_t size, size_t alignment);
void *mi_realloc_aligned_at(void *p, size_t size, size_t alignment, size_t offset);
void *mi_rezalloc_aligned(void *p, size_t size, size_t alignment);
void *mi_recalloc_aligned(void *p, size_t count, size_t size, size_t alignment);
void *mi_memalign(size_t alignment, size_t size);
void *mi_aligned_alloc(size_t alignment, size_t size);
int mi_posix_memalign(void **p, size_t alignment, size_t size);
void *mi_valloc(size_t size);
void *mi_new(size_t size);
void *mi_new_n(size_t count, size_t size);
void *mi_new_nothrow(size_t size);
void *mi_new_aligned(size_t size, size_t alignment);
void *mi_new_aligned_nothrow(size_t size, size_t alignment);
void *mi_new_realloc(void *p, size_t size);
void *mi_new_reallocn(void *p, size_t count, size_t size);
void *mi_heap_malloc(mi_heap_t *heap, size_t size);
void *mi_heap_malloc_small(mi_heap_t *heap, size_t size);
void *mi_heap_zalloc(mi_heap_t *heap, size_t size);
void *mi_heap_calloc(mi_heap_t *heap, size_t count, size_t size);
void *mi_heap_mallocn(mi_heap_t *heap, size_t count, size_t size);
char *mi_heap_strdup(mi_heap_t *heap, const char *text);
void *mi_heap_realloc(mi_heap_t *heap, void *p, size_t size);
void *mi_heap_reallocn(mi_heap_t *heap, void *p, size_t count, size_t size);
void *mi_heap_reallocf(mi_heap_t *heap, void *p, size_t size);
void *mi_heap_rezalloc(mi_heap_t *heap, void *p, size_t size);
void *mi_heap_recalloc(mi_heap_t *heap, void *p, size_t count, size_t size);
void *mi_heap_malloc_aligned(mi_heap_t *heap, size_t size, size_t alignment);
void *mi_heap_malloc_aligned_at(mi_heap_t *heap, size_t size, size_t alignment, size_t offset);
void *mi_heap_zalloc_aligned(mi_heap_t *heap, size_t size, size_t alignment);
void *mi_heap_calloc_aligned(mi_heap_t *heap, size_t count, size_t size, size_t alignment);
void *mi_heap_calloc_aligned_at(mi_heap_t *heap, size_t count, size_t size, size_t alignment, size_t offset);
void *mi_heap_realloc_aligned(mi_heap_t *heap, void *p, size_t size, size_t alignment);
void *mi_heap_recalloc_aligned(mi_heap_t *heap, void *p, size_t count, size_t size, size_t alignment);
void *mi_heap_alloc_new(mi_heap_t *heap, size_t size);
void *mi_heap_alloc_new_n(mi_heap_t *heap, size_t count, size_t size);
void mi_free(void *p);
void mi_free_size(void *p, size_t size);
void mi_free_aligned(void *p, size_t alignment);
void mi_free_size_aligned(void *p, size_t size, size_t alignment);
void mi_cfree(void *p);

#define HEAP mi_heap_get_default()
#define SMALL 1024 /* the maximum of mi_malloc_small */

static volatile size_t too_much = SIZE_MAX / 2;

/* A text of size - 1 characters. */
static const char *text_of(size_t size)
{
	static __thread char text[4096];

	memset(text, 'm', size - 1);
	text[size - 1] = 0;
	return text;
}

#define POSIX_MEMALIGN(size)                                                                             \
	({                                                                                               \
		void *address_ = NULL;                                                                   \
                                                                                                         \
		mi_posix_memalign(&address_, UNIT, size) ? NULL : address_;                              \
	})

KIND(malloc, mi_malloc(size), mi_free(p))
KIND(malloc_small, size <= SMALL ? mi_malloc_small(size) : mi_malloc(size), mi_free_size(p, size))
KIND(zalloc, mi_zalloc(size), mi_free(p))
KIND(zalloc_small, size <= SMALL ? mi_zalloc_small(size) : mi_zalloc(size), mi_free(p))
KIND(calloc, mi_calloc(size / 8, 8), mi_free(p))
KIND(mallocn, mi_mallocn(size / 8, 8), mi_free(p))
KIND(realloc, mi_realloc(NULL, size), mi_free(p))
KIND(reallocn, mi_reallocn(NULL, size / 8, 8), mi_free(p))
KIND(reallocf, mi_reallocf(NULL, size), mi_free(p))
KIND(reallocarray, mi_reallocarray(NULL, size / 8, 8), mi_free(p))
KIND(rezalloc, mi_rezalloc(NULL, size), mi_free(p))
KIND(recalloc, mi_recalloc(NULL, size / 8, 8), mi_free(p))
KIND(strdup, mi_strdup(text_of(size)), mi_free(p))
KIND(strndup, mi_strndup(text_of(size + 5), size - 1), mi_free(p))
KIND(malloc_aligned, mi_malloc_aligned(size, UNIT), mi_free_size_aligned(p, size, UNIT))
KIND(malloc_aligned_at, mi_malloc_aligned_at(size, UNIT, 8), mi_free(p))
KIND(zalloc_aligned, mi_zalloc_aligned(size, UNIT), mi_free_aligned(p, UNIT))
KIND(zalloc_aligned_at, mi_zalloc_aligned_at(size, UNIT, 8), mi_free(p))
KIND(calloc_aligned, mi_calloc_aligned(size / 8, 8, UNIT), mi_free(p))
KIND(calloc_aligned_at, mi_calloc_aligned_at(size / 8, 8, UNIT, 8), mi_free(p))
KIND(realloc_aligned, mi_realloc_aligned(NULL, size, UNIT), mi_free(p))
KIND(realloc_aligned_at, mi_realloc_aligned_at(NULL, size, UNIT, 8), mi_free(p))
KIND(rezalloc_aligned, mi_rezalloc_aligned(NULL, size, UNIT), mi_free(p))
KIND(recalloc_aligned, mi_recalloc_aligned(NULL, size / 8, 8, UNIT), mi_free(p))
KIND(memalign, mi_memalign(UNIT, size), mi_free(p))
KIND(aligned_alloc, mi_aligned_alloc(UNIT, size), mi_free(p))
KIND(posix_memalign, POSIX_MEMALIGN(size), mi_free(p))
KIND(valloc, mi_valloc(size), mi_free(p))
KIND(new, mi_new(size), mi_free(p))
KIND(new_n, mi_new_n(size / 8, 8), mi_free(p))
KIND(new_nothrow, mi_new_nothrow(size), mi_free(p))
KIND(new_aligned, mi_new_aligned(size, UNIT), mi_free(p))
KIND(new_aligned_nothrow, mi_new_aligned_nothrow(size, UNIT), mi_free(p))
KIND(new_realloc, mi_new_realloc(NULL, size), mi_free(p))
KIND(new_reallocn, mi_new_reallocn(NULL, size / 8, 8), mi_free(p))
KIND(heap_malloc, mi_heap_malloc(HEAP, size), mi_free(p))
KIND(heap_malloc_small, size <= SMALL ? mi_heap_malloc_small(HEAP, size) : mi_heap_malloc(HEAP, size),
     mi_free(p))
KIND(heap_zalloc, mi_heap_zalloc(HEAP, size), mi_free(p))
KIND(heap_calloc, mi_heap_calloc(HEAP, size / 8, 8), mi_free(p))
KIND(heap_mallocn, mi_heap_mallocn(HEAP, size / 8, 8), mi_free(p))
KIND(heap_strdup, mi_heap_strdup(HEAP, text_of(size)), mi_free(p))
KIND(heap_realloc, mi_heap_realloc(HEAP, NULL, size), mi_free(p))
KIND(heap_reallocn, mi_heap_reallocn(HEAP, NULL, size / 8, 8), mi_free(p))
KIND(heap_reallocf, mi_heap_reallocf(HEAP, NULL, size), mi_free(p))
KIND(heap_rezalloc, mi_heap_rezalloc(HEAP, NULL, size), mi_free(p))
KIND(heap_recalloc, mi_heap_recalloc(HEAP, NULL, size / 8, 8), mi_free(p))
KIND(heap_malloc_aligned, mi_heap_malloc_aligned(HEAP, size, UNIT), mi_free(p))
KIND(heap_malloc_aligned_at, mi_heap_malloc_aligned_at(HEAP, size, UNIT, 8), mi_free(p))
KIND(heap_zalloc_aligned, mi_heap_zalloc_aligned(HEAP, size, UNIT), mi_free(p))
KIND(heap_calloc_aligned, mi_heap_calloc_aligned(HEAP, size / 8, 8, UNIT), mi_free(p))
KIND(heap_calloc_aligned_at, mi_heap_calloc_aligned_at(HEAP, size / 8, 8, UNIT, 8), mi_free(p))
KIND(heap_realloc_aligned, mi_heap_realloc_aligned(HEAP, NULL, size, UNIT), mi_free(p))
KIND(heap_recalloc_aligned, mi_heap_recalloc_aligned(HEAP, NULL, size / 8, 8, UNIT), mi_free(p))
KIND(heap_new, mi_heap_alloc_new(HEAP, size), mi_free(p))
KIND(heap_new_n, mi_heap_alloc_new_n(HEAP, size / 8, 8), mi_free(p))
/* By the C library's names, and across. */
KIND(c_malloc, malloc(size), mi_free(p))
KIND(c_free, mi_malloc(size), free(p))

static const struct kind listed[] = {
	LISTED(malloc),
	LISTED(malloc_small),
	LISTED(zalloc),
	LISTED(zalloc_small),
	LISTED(calloc),
	LISTED(mallocn),
	LISTED(realloc),
	LISTED(reallocn),
	LISTED(reallocf),
	LISTED(reallocarray),
	LISTED(rezalloc),
	LISTED(recalloc),
	LISTED(strdup),
	LISTED(strndup),
	LISTED(malloc_aligned),
	LISTED(malloc_aligned_at),
	LISTED(zalloc_aligned),
	LISTED(zalloc_aligned_at),
	LISTED(calloc_aligned),
	LISTED(calloc_aligned_at),
	LISTED(realloc_aligned),
	LISTED(realloc_aligned_at),
	LISTED(rezalloc_aligned),
	LISTED(recalloc_aligned),
	LISTED(memalign),
	LISTED(aligned_alloc),
	LISTED(posix_memalign),
	LISTED(valloc),
	LISTED(new),
	LISTED(new_n),
	LISTED(new_nothrow),
	LISTED(new_aligned),
	LISTED(new_aligned_nothrow),
	LISTED(new_realloc),
	LISTED(new_reallocn),
	LISTED(heap_malloc),
	LISTED(heap_malloc_small),
	LISTED(heap_zalloc),
	LISTED(heap_calloc),
	LISTED(heap_mallocn),
	LISTED(heap_strdup),
	LISTED(heap_realloc),
	LISTED(heap_reallocn),
	LISTED(heap_reallocf),
	LISTED(heap_rezalloc),
	LISTED(heap_recalloc),
	LISTED(heap_malloc_aligned),
	LISTED(heap_malloc_aligned_at),
	LISTED(heap_zalloc_aligned),
	LISTED(heap_calloc_aligned),
	LISTED(heap_calloc_aligned_at),
	LISTED(heap_realloc_aligned),
	LISTED(heap_recalloc_aligned),
	LISTED(heap_new),
	LISTED(heap_new_n),
	LISTED(c_malloc),
	LISTED(c_free),
};

/* -- blocks that are resized ------------------------------------------------------------------------- */

#define RESIZE(name, call)                                                                               \
	static struct site site_##name = SITE_OF(#name);                                                 \
	SITE_FUNCTION static struct block name(struct block old, size_t size)                            \
	{                                                                                                \
		void *p = old.address;                                                                   \
		void *address = call;                                                                    \
                                                                                                         \
		block_freed(&old);                                                                       \
		return block_allocated(&site_##name, address, size);                                     \
	}

RESIZE(resize_realloc, mi_realloc(p, size))
RESIZE(resize_reallocn, mi_reallocn(p, size / 8, 8))
RESIZE(resize_reallocf, mi_reallocf(p, size))
RESIZE(resize_reallocarray, mi_reallocarray(p, size / 8, 8))
RESIZE(resize_rezalloc, mi_rezalloc(p, size))
RESIZE(resize_recalloc, mi_recalloc(p, size / 8, 8))
RESIZE(resize_aligned, mi_realloc_aligned(p, size, UNIT))
RESIZE(resize_recalloc_aligned, mi_recalloc_aligned(p, size / 8, 8, UNIT))
RESIZE(resize_new, mi_new_realloc(p, size))
RESIZE(resize_new_n, mi_new_reallocn(p, size / 8, 8))
RESIZE(resize_heap, mi_heap_realloc(HEAP, p, size))
RESIZE(resize_heap_n, mi_heap_reallocn(HEAP, p, size / 8, 8))
RESIZE(resize_heap_f, mi_heap_reallocf(HEAP, p, size))
RESIZE(resize_heap_recalloc, mi_heap_recalloc(HEAP, p, size / 8, 8))
RESIZE(resize_heap_aligned, mi_heap_realloc_aligned(HEAP, p, size, UNIT))

static struct block (*const resizes[])(struct block old, size_t size) = {
	resize_realloc,	 resize_reallocn,      resize_reallocf, resize_reallocarray, resize_rezalloc,
	resize_recalloc, resize_aligned,       resize_new,	resize_new_n,	     resize_recalloc_aligned,
	resize_heap,	 resize_heap_n,	       resize_heap_f,	resize_heap_aligned, resize_heap_recalloc,
};

static struct site site_take = SITE_OF("take");
SITE_FUNCTION static struct block take(size_t size)
{
	return block_allocated(&site_take, mi_malloc(size), size);
}

SITE_FUNCTION static void free_if_too_much(struct block old)
{
	if (mi_reallocf(old.address, too_much))
		WORKLOAD_FATAL("mi_reallocf of a huge size succeeded");
	block_freed(&old);
}

SITE_FUNCTION static void heap_free_if_too_much(struct block old)
{
	if (mi_heap_reallocf(HEAP, old.address, too_much))
		WORKLOAD_FATAL("mi_heap_reallocf of a huge size succeeded");
	block_freed(&old);
}

SITE_FUNCTION static void keep_if_too_much(struct block old)
{
	if (mi_realloc(old.address, too_much) || mi_heap_realloc(HEAP, old.address, too_much) ||
	    mi_reallocarray(old.address, too_much, 4) || mi_reallocn(old.address, too_much + 1, 4) ||
	    mi_calloc(too_much, 4) || mi_heap_calloc(HEAP, too_much, 4) || mi_mallocn(too_much, 4))
		WORKLOAD_FATAL("a huge size was given");
	memset(old.address, 1, old.size); /* the block is still the program's */
}

static struct site site_expand = SITE_OF("expand");
SITE_FUNCTION static void expand(struct block old, size_t size)
{
	void *address = mi_expand(old.address, size);

	if (!address)
		return;
	block_freed(&old);
	block_allocated(&site_expand, address, size);
}

SITE_FUNCTION static void give_cfree(struct block block)
{
	mi_cfree(block.address);
	NO_TAIL_CALL();
	block_freed(&block);
}

static void stories(void)
{
	for (unsigned i = 0; i < sizeof(resizes) / sizeof(resizes[0]); i++) {
		resizes[i](take(24), 4096);
		resizes[i](take(8192), 64);
		resizes[i](take(100), 104);
	}
	free_if_too_much(take(37));
	heap_free_if_too_much(take(41));
	keep_if_too_much(take(43));
	expand(take(100), 101);
	expand(take(100), 10000);
	give_cfree(take(47));
}

static void step(long number)
{
	(void)number;
	kinds_step();
}

int main(int argc, char **argv)
{
	kinds_start(argc, argv, listed, sizeof(listed) / sizeof(listed[0]), stories);
	return workload_serve(step);
}
