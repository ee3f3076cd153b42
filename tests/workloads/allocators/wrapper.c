// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * wrapper - a library to preload that puts 32 bytes of its own before every block of the C library, as
 * debugging allocators do: each call is two nested ones, about different sizes and different addresses.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

enum { OWN = 32 };

static void *(*real_malloc)(size_t size);
static void (*real_free)(void *block);

/* dlsym may allocate; it works without. */
__attribute__((constructor)) static void find(void)
{
	if (real_malloc)
		return;
	*(void **)&real_free = dlsym(RTLD_NEXT, "free");
	*(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc");
}

void *malloc(size_t size)
{
	char *memory;

	find();
	memory = size + OWN < size ? NULL : real_malloc(size + OWN);
	if (!memory) {
		errno = ENOMEM;
		return NULL;
	}
	*(size_t *)memory = size;
	return memory + OWN;
}

void free(void *block)
{
	if (block)
		real_free((char *)block - OWN);
}

void *calloc(size_t count, size_t size)
{
	size_t bytes;
	void *block;

	if (__builtin_mul_overflow(count, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	block = malloc(bytes);
	return block ? memset(block, 0, bytes) : NULL;
}

void *realloc(void *old, size_t size)
{
	void *block;

	if (!old)
		return malloc(size);
	if (!size) {
		free(old);
		return NULL;
	}
	block = malloc(size);
	if (block) {
		size_t old_size = *(size_t *)((char *)old - OWN);

		memcpy(block, old, old_size < size ? old_size : size);
		free(old);
	}
	return block;
}
