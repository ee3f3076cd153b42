// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * mappings SEED CALLS - makes random calls that change the address space and logs each with its result.
 *
 * A line is CALL RESULT ARGUMENTS..., all in hex, -1 for a call that failed. "ready" comes before the first
 * and "done" after the last; then it waits for the end of its input. Nothing in here allocates memory.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, ARENA_PAGES = 512, OUTSIDE = 64 };

static char text[1 << 16];
static size_t text_length;

static void flush(void)
{
	for (size_t done = 0; done < text_length;) {
		ssize_t written = write(1, text + done, text_length - done);

		if (written <= 0)
			_exit(3);
		done += (size_t)written;
	}
	text_length = 0;
}

static void say(const char *format, ...)
{
	va_list arguments;

	if (text_length > sizeof(text) - 256)
		flush();
	va_start(arguments, format);
	text_length += (size_t)vsnprintf(text + text_length, 256, format, arguments);
	va_end(arguments);
}

static uint64_t state;

/* xorshift64*: the same numbers everywhere. */
static unsigned below(unsigned limit)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (unsigned)((state * 2685821657736338717ULL) >> 33) % limit;
}

/* Ranges that were once given to us outside of the arena: nothing else lives there. */
static struct {
	char *start;
	size_t length;
} outside[OUTSIDE];

static char *arena;
static int file;
static uintptr_t program_break;

static void *somewhere(size_t *length, unsigned pages_max)
{
	unsigned first = below(ARENA_PAGES - 1);
	unsigned pages = 1 + below(pages_max);

	if (pages > ARENA_PAGES - first)
		pages = ARENA_PAGES - first;
	*length = (size_t)pages * PAGE - below(PAGE);
	return arena + (size_t)first * PAGE;
}

static void remember(void *start, size_t length)
{
	unsigned slot = below(OUTSIDE);

	if (start == MAP_FAILED || ((char *)start >= arena && (char *)start < arena + ARENA_PAGES * PAGE))
		return;
	outside[slot].start = start;
	outside[slot].length = length;
}

/* A part of one of those ranges, in the place of another; nothing if there is none. */
static void somewhere_outside(char **start, size_t *length)
{
	unsigned slot = below(OUTSIDE);
	size_t offset = (size_t)below(4) * PAGE;

	if (!outside[slot].start || offset >= outside[slot].length)
		return;
	*start = outside[slot].start + offset;
	if (*length > outside[slot].length - offset)
		*length = outside[slot].length - offset;
}

static void call_mmap(void)
{
	size_t length;
	void *hint = somewhere(&length, 24), *result;
	int fixed = below(3) > 0, from_file = below(8) == 0;
	int access = below(3) ? PROT_READ | (from_file ? 0 : PROT_WRITE) : PROT_NONE;
	int flags = MAP_PRIVATE | (fixed ? MAP_FIXED : 0) | (from_file ? 0 : MAP_ANONYMOUS);

	result = mmap(fixed ? hint : NULL, length, access, flags, from_file ? file : -1, 0);
	say("mmap %lx %zx %x %x\n", (long)result, length, access, from_file);
	remember(result, length);
}

static void call_munmap(void)
{
	size_t length;
	char *start = somewhere(&length, 16);

	if (below(2))
		somewhere_outside(&start, &length);
	say("munmap %lx %lx %zx\n", (long)munmap(start, length), (long)start, length);
}

static void call_mremap(void)
{
	size_t old_length, new_length;
	char *start = somewhere(&old_length, 8), *to = somewhere(&new_length, 12);
	unsigned how = below(4);
	int flags = how == 0 ? 0 : how == 1 ? MREMAP_MAYMOVE : MREMAP_MAYMOVE | MREMAP_FIXED;
	void *result;

	if (below(3) == 0)
		somewhere_outside(&start, &old_length);
	if (how == 3) {
		flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
		new_length = old_length;
	}
	/* Where it is not fixed the address is ignored, or a hint. */
	result = mremap(start, old_length, new_length, flags, how == 2 ? to : NULL);
	say("mremap %lx %lx %zx %zx %x\n", (long)result, (long)start, old_length, new_length, how == 3);
	remember(result, new_length);
}

static void call_mprotect(void)
{
	size_t length;
	char *start = somewhere(&length, 24);
	int access = below(2) ? PROT_READ : PROT_NONE;

	/* With a hole in the range it would fail, but not before it has changed what is before the hole. */
	if (msync(start, length, MS_ASYNC))
		return;
	say("mprotect %lx %lx %zx %x\n", (long)mprotect(start, length, access), (long)start, length, access);
}

static void call_madvise(void)
{
	size_t length;
	char *start = somewhere(&length, 16);

	if (msync(start, length, MS_ASYNC))
		return;
	say("madvise %lx %lx %zx\n", (long)madvise(start, length, MADV_DONTNEED), (long)start, length);
}

static void call_brk(void)
{
	uintptr_t old = program_break, wanted = old + below(9 * PAGE);

	if (below(2) && old > (uintptr_t)sbrk(0) + 9 * PAGE)
		wanted = old - below(9 * PAGE);
	program_break = (uintptr_t)syscall(SYS_brk, wanted);
	say("brk %lx %lx\n", (long)program_break, (long)old);
}

int main(int argc, char **argv)
{
	static void (*const calls[])(void) = {call_mmap,   call_mmap,	  call_munmap, call_mremap,
					      call_mremap, call_mprotect, call_mprotect, call_madvise, call_brk};
	volatile char stack[64 * PAGE];
	long count = argc > 2 ? strtol(argv[2], NULL, 10) : 1000;

	/* The stack grows without a call: it does so before all is counted. */
	for (size_t i = 0; i < sizeof(stack); i += PAGE)
		stack[i] = 1;
	state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	file = open("/proc/self/exe", O_RDONLY);
	program_break = (uintptr_t)sbrk(0);
	arena = mmap(NULL, ARENA_PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (arena == MAP_FAILED || file < 0)
		return 2;
	say("ready %lx\n", (long)arena);
	flush();
	if (read(0, text, 1) != 1)
		return 2;
	while (count-- > 0)
		calls[below(sizeof(calls) / sizeof(calls[0]))]();
	say("done 0\n");
	flush();
	return read(0, text, 1) < 0;
}
