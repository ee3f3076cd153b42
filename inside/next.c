/* SPDX-License-Identifier: GPL-2.0-or-later */
#define _GNU_SOURCE
#include "next.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "marks.h"
#include "sampler.h"

/*
 * In every glibc; before 2.34 it is in libdl. So the library also works on older systems than the one that built it.
 */
#if defined(__GLIBC__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dladdr, dladdr@GLIBC_2.2.5");
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
#endif

/* Blocks are like sampled ones, so free checks them: they begin at a page, with their size before it. */
char early_pages[EARLY_PAGES][MARK_PAGE_BYTES] __attribute__((aligned(MARK_PAGE_BYTES)));
static size_t early_pages_taken = 1;

/* A flag of glibc's: the chunk is mapped, so malloc_usable_size looks at no other chunk. */
#define IS_MMAPPED 2

size_t early_block_bytes(const void *block)
{
	return size_word(block) - IS_MMAPPED - sizeof(uint64_t);
}

/* The size of a block is at the end of the page before, as glibc would write it. */
static void *block_of_pages(char *first, size_t pages)
{
	((uint64_t *)first)[-1] = pages * MARK_PAGE_BYTES + IS_MMAPPED;
	return first;
}

static void *early_block(size_t size)
{
	size_t pages = size / MARK_PAGE_BYTES + 1, first;

	/* The next block's size takes the end of the last page. */
	pages += size % MARK_PAGE_BYTES > MARK_PAGE_BYTES - sizeof(uint64_t);
	if (pages < EARLY_PAGES) {
		first = __atomic_fetch_add(&early_pages_taken, pages, __ATOMIC_RELAXED);
		if (first <= EARLY_PAGES - pages)
			return block_of_pages(early_pages[first], pages);
	}
	errno = ENOMEM;
	return NULL;
}

/* Each function, until it is found. */

static void *early_malloc(size_t size)
{
	return find_next_allocator() ? next.malloc(size) : early_block(size);
}

static void *early_calloc(size_t count, size_t size)
{
	size_t bytes;

	if (find_next_allocator())
		return next.calloc(count, size);
	if (__builtin_mul_overflow(count, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	/* The pages are zeroed, and used once. */
	return early_block(bytes);
}

static void *early_realloc(void *old, size_t size)
{
	void *block;

	if (find_next_allocator())
		return next.realloc(old, size);
	block = early_block(size);
	/* Only during the look-up: `old` is from these pages, too. */
	if (block && old && is_early_block(old))
		memmove(block, old, size < early_block_bytes(old) ? size : early_block_bytes(old));
	return block;
}

static void early_free(void *block)
{
	if (find_next_allocator())
		next.free(block);
}

static void *early_aligned(size_t alignment, size_t size)
{
	if (find_next_allocator())
		return next.aligned_alloc(alignment, size);
	return alignment <= MARK_PAGE_BYTES ? early_block(size) : NULL;
}

static void *early_memalign(size_t alignment, size_t size)
{
	return find_next_allocator() ? next.memalign(alignment, size) : early_aligned(alignment, size);
}

static int early_posix_memalign(void **result, size_t alignment, size_t size)
{
	void *block;

	if (find_next_allocator())
		return next.posix_memalign(result, alignment, size);
	block = early_aligned(alignment, size);
	if (!block)
		return ENOMEM;
	*result = block;
	return 0;
}

static void *early_valloc(size_t size)
{
	return find_next_allocator() ? next.valloc(size) : early_block(size);
}

static void *early_pvalloc(size_t size)
{
	return find_next_allocator() ? next.pvalloc(size) : early_block(size);
}

/* Functions that no library of the program has. */

static void *no_aligned(size_t alignment, size_t size)
{
	(void)alignment, (void)size;
	errno = ENOMEM;
	return NULL;
}

static int no_posix_memalign(void **result, size_t alignment, size_t size)
{
	(void)result, (void)alignment, (void)size;
	return ENOMEM;
}

static void *no_valloc(size_t size)
{
	(void)size;
	errno = ENOMEM;
	return NULL;
}

struct next_allocator next = {
	.malloc = early_malloc,
	.calloc = early_calloc,
	.realloc = early_realloc,
	.free = early_free,
	.posix_memalign = early_posix_memalign,
	.aligned_alloc = early_aligned,
	.memalign = early_memalign,
	.valloc = early_valloc,
	.pvalloc = early_pvalloc,
};

/* Where a function's file is mapped; NULL: unknown. */
static void *module_of(void *function)
{
	Dl_info info;

	return function && dladdr(function, &info) ? info.dli_fbase : NULL;
}

/* The next function of a name, if it belongs to the same file as `malloc`. */
static void *of_module(const char *name, void *module)
{
	void *function = dlsym(RTLD_NEXT, name);

	return module && module_of(function) == module ? function : NULL;
}

static void find_others(struct next_allocator *found, void *module)
{
	found->malloc_usable_size = of_module("malloc_usable_size", module);
	found->free_sized = of_module("free_sized", module);
	found->free_aligned_sized = of_module("free_aligned_sized", module);
	found->mallocx = of_module("mallocx", module);
	found->rallocx = of_module("rallocx", module);
	found->dallocx = of_module("dallocx", module);
	found->sdallocx = of_module("sdallocx", module);
	found->zalloc_aligned = of_module("mi_zalloc_aligned", module);
	found->realloc_aligned = of_module("mi_realloc_aligned", module);
}

/*
 * Whether the word before `block` is its size, as glibc writes it. valgrind puts its own functions in the place of
 * glibc's, and reports those who read there; it knows blocks of any size, glibc has only chunks of 16 bytes.
 */
static bool has_size_word(const struct next_allocator *found, void *block)
{
	size_t chunk_bytes = found->malloc_usable_size(block) + sizeof(uint64_t);

	return chunk_bytes % 16 == 0 && (size_word(block) & ~7ULL) == chunk_bytes;
}

/*
 * Whether `found` is glibc's malloc, whose blocks have their size before them. Before 2.34, a program could replace it
 * by functions of its own (malloc_hook(3)). The word before their blocks may be anything, and need not be mapped.
 */
static bool has_size_words(const struct next_allocator *found, void *module)
{
	const char *(*version)(void) = (const char *(*)(void))of_module("gnu_get_libc_version", module);
	void *small, *large;
	bool has;

	if (!version || strverscmp(version(), "2.34") < 0 || !found->malloc_usable_size)
		return false;
	small = found->malloc(1);
	large = found->malloc(MARK_LEAST_BYTES);
	has = small && large && has_size_word(found, small) && has_size_word(found, large) &&
	      size_word(small) < MARK_LEAST_BYTES && size_word(large) > MARK_LEAST_BYTES;
	found->free(small);
	found->free(large);
	return has;
}

#define FIND(name, otherwise) \
	(found.name = dlsym(RTLD_NEXT, #name), found.name = found.name ? found.name : (otherwise))

bool find_next_allocator(void)
{
	struct next_allocator found = {};
	void *module;

	if (sampler.is_resolving)
		return false;
	sampler.is_resolving = true;
	FIND(malloc, NULL);
	FIND(calloc, NULL);
	FIND(realloc, NULL);
	FIND(free, NULL);
	FIND(posix_memalign, no_posix_memalign);
	FIND(aligned_alloc, no_aligned);
	FIND(memalign, no_aligned);
	FIND(valloc, no_valloc);
	FIND(pvalloc, no_valloc);
	/* The C library has no malloc; nothing works. */
	if (!found.malloc || !found.calloc || !found.realloc || !found.free)
		__builtin_trap();
	module = module_of((void *)found.malloc);
	found.can_mark = module && module_of((void *)found.free) == module &&
			 module_of((void *)found.realloc) == module &&
			 module_of((void *)found.calloc) == module &&
			 module_of((void *)found.posix_memalign) == module;
	if (found.can_mark)
		find_others(&found, module);
	/* Each word is written in one step, and every thread writes the same. */
	marks_are_by_size = found.can_mark && has_size_words(&found, module);
	next = found;
	sampler.is_resolving = false;
	return true;
}

time_t (*clock_without_call(void))(time_t *)
{
	void *vdso = dlopen("linux-vdso.so.1", RTLD_LAZY | RTLD_NOLOAD);

	return vdso ? (time_t(*)(time_t *))dlsym(vdso, "__vdso_time") : NULL;
}

bool is_asked_first(void)
{
	return module_of(dlsym(RTLD_DEFAULT, "malloc")) == module_of((void *)early_malloc);
}
