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
#endif

/* Blocks begin at a page, so free checks them. */
char early_pages[EARLY_PAGES][MARK_PAGE_BYTES] __attribute__((aligned(MARK_PAGE_BYTES)));
static size_t early_pages_taken;

size_t early_bytes_behind(const void *block)
{
	return sizeof(early_pages) - ((uintptr_t)block - (uintptr_t)early_pages);
}

static void *early_block(size_t size)
{
	size_t pages = size / MARK_PAGE_BYTES + 1, first;

	if (pages <= EARLY_PAGES) {
		first = __atomic_fetch_add(&early_pages_taken, pages, __ATOMIC_RELAXED);
		if (first <= EARLY_PAGES - pages)
			return early_pages[first];
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
		memmove(block, old, size < early_bytes_behind(old) ? size : early_bytes_behind(old));
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
	found.can_align = module && module_of((void *)found.free) == module &&
			  module_of((void *)found.realloc) == module &&
			  module_of((void *)found.calloc) == module &&
			  module_of((void *)found.posix_memalign) == module;
	if (found.can_align)
		find_others(&found, module);
	/* Each word is written in one step, and every thread writes the same. */
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
