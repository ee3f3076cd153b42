// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * own - an unknown allocator: a library that defines malloc, free and some of the rest.
 *
 * Blocks come in powers of two from mapped chunks and return to lists. To be preloaded, or opened.
 * C++'s operator delete keeps a journal, for which it maps memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { CLASSES = 48, CHUNK = 1 << 20, HEADER = 16, JOURNAL = 4096 };

/* Before each block: its class, and the distance to the beginning of its memory. */
struct header {
	uint64_t class;
	uint64_t offset;
};

static void *free_lists[CLASSES];
static char *chunk, *chunk_end;
static void **journal, **journal_end;
static int lock;

static void take_lock(void)
{
	while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE))
		__builtin_ia32_pause();
}

static void leave_lock(void)
{
	__atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

static void *take_memory(int class)
{
	size_t size = (size_t)1 << class;
	char *memory;

	if (size >= CHUNK) {
		memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		return memory == MAP_FAILED ? NULL : memory;
	}
	take_lock();
	memory = free_lists[class];
	if (memory) {
		free_lists[class] = *(void **)memory;
	} else {
		if ((size_t)(chunk_end - chunk) < size) {
			chunk = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			chunk_end = chunk + CHUNK;
		}
		memory = chunk;
		chunk += size;
	}
	leave_lock();
	return memory;
}

static void *take(size_t alignment, size_t size)
{
	size_t wanted = size + HEADER + (alignment > HEADER ? alignment : 0);
	int class = 5;
	char *memory, *block;

	if (wanted < size || wanted >> (CLASSES - 1)) {
		errno = ENOMEM;
		return NULL;
	}
	while ((size_t)1 << class < wanted)
		class++;
	memory = take_memory(class);
	if (!memory)
		return NULL;
	block = memory + HEADER;
	if (alignment > HEADER)
		block = (char *)(((uintptr_t)block + alignment - 1) & -alignment);
	((struct header *)block)[-1] = (struct header){(uint64_t)class, (uint64_t)(block - memory)};
	return block;
}

void *malloc(size_t size)
{
	return take(HEADER, size);
}

void free(void *block)
{
	struct header *header = (struct header *)block - 1;
	uint64_t class;
	char *memory;

	if (!block)
		return;
	class = header->class;
	memory = (char *)block - header->offset;
	if ((size_t)1 << class >= CHUNK) {
		munmap(memory, (size_t)1 << class);
		return;
	}
	take_lock();
	*(void **)memory = free_lists[class];
	free_lists[class] = memory;
	leave_lock();
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
	struct header *header = (struct header *)old - 1;
	void *block;
	size_t room;

	if (!old)
		return malloc(size);
	if (!size) {
		free(old);
		return NULL;
	}
	room = ((size_t)1 << header->class) - header->offset;
	if (size <= room)
		return old;
	block = malloc(size);
	if (!block)
		return NULL;
	memcpy(block, old, room);
	free(old);
	return block;
}

/* Not by way of realloc, unlike in C libraries. */
void *reallocarray(void *old, size_t count, size_t size)
{
	size_t bytes;
	void *block;

	if (__builtin_mul_overflow(count, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	block = take(HEADER, bytes);
	if (block && old) {
		struct header *header = (struct header *)old - 1;
		size_t room = ((size_t)1 << header->class) - header->offset;

		memcpy(block, old, room < bytes ? room : bytes);
		free(old);
	}
	return block;
}

int posix_memalign(void **result, size_t alignment, size_t size)
{
	void *block;

	if (alignment % sizeof(void *) || (alignment & (alignment - 1)))
		return EINVAL;
	block = take(alignment, size);
	if (!block)
		return ENOMEM;
	*result = block;
	return 0;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return take(alignment, size);
}

void *memalign(size_t alignment, size_t size)
{
	return take(alignment, size);
}

void *valloc(size_t size)
{
	return take(4096, size);
}

void *pvalloc(size_t size)
{
	return take(4096, (size + 4095) & ~(size_t)4095);
}

/* operator new(size_t) and operator delete(void *) */
void *_Znwm(size_t size)
{
	return take(HEADER, size);
}

void _ZdlPv(void *block)
{
	take_lock();
	if (journal == journal_end) {
		journal = mmap(NULL, JOURNAL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		journal_end = journal + JOURNAL / sizeof(void *);
	}
	*journal++ = block;
	leave_lock();
	free(block);
}
