/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The allocator's functions, in front of those of the program's own allocator.
 *
 * A call counts down and continues in the next allocator. Only a block with a mark (sampler.h) gets more attention,
 * and only while a tracer listens: the sampler allocates it so that free can recognise it (marks.h), and announces
 * it and its end (probes.h). The block still belongs to the program's allocator, and all functions of that
 * allocator work on it.
 *
 * Rules:
 *  - The end of a block is announced before the allocator can reuse its address.
 *  - A sampled block becomes an ordinary one if sampling it fails (no memory, no place to note it).
 *  - Zeroed memory that the allocator has never touched stays untouched, and the sampler moves no very large blocks.
 *  - A frame of the function that the program called stays on the stack of every announcement.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "marks.h"
#include "next.h"
#include "probes.h"
#include "sampler.h"

#define EXPORT __attribute__((visibility("default")))
#define SELDOM __attribute__((noinline, cold))
#define likely(condition) __builtin_expect(!!(condition), 1)
#define unlikely(condition) __builtin_expect(!!(condition), 0)

/* MALLOCX_LG_ALIGN(12) and MALLOCX_ZERO of jemalloc(3). */
#define JEMALLOC_AT_PAGE 12
#define JEMALLOC_ZEROED 0x40

/* The allocator may map larger zeroed blocks just for this call; the sampler does not write to them. */
#define LARGE_BYTES (64UL << 10)
/* The largest block that the sampler copies or zeroes: the largest that glibc takes from its heap. */
#define COPIED_BYTES_MAX (32UL << 20)

/*
 * The library's state in this process, for tracers to read. 0: not called yet. 1: it samples. 2: the program uses
 * another malloc, or its allocator's functions belong to several allocators.
 */
enum { STATE_UNUSED = 0, STATE_ACTIVE = 1, STATE_BYPASSED = 2 };
EXPORT volatile uint32_t bpfleak_inside_state = STATE_UNUSED;

static inline bool is_listened_to(void)
{
	return next.can_mark && are_blocks_wanted();
}

/* Keeps the caller's frame, and so its name, on the stack while the callee runs. */
#define WITH_FRAME(call)                               \
	({                                             \
		__typeof__(call) result_ = (call);     \
		__asm__ volatile("" : "+r"(result_)); \
		result_;                               \
	})

/* Not inline, so that it costs other blocks no instruction. */
static __attribute__((noinline)) bool is_marked_or_early(const void *block)
{
	return is_marked(block) || is_early_block(block);
}

/* Whether a block is sampled, or lies in the library's own pages. */
static inline bool is_ours(const void *block)
{
	/* Programs free NULL often. */
	return likely(block != NULL) && unlikely(may_be_marked(block)) && is_marked_or_early(block);
}

/* Announcements */

static SELDOM void announce(void *block, size_t size)
{
	if (set_mark(block))
		announce_block(block, size, weighted_bytes(size));
}

/* Announces the end of a block if it is sampled. */
static SELDOM bool announce_end(void *block)
{
	if (!take_mark(block))
		return false;
	announce_block_end(block);
	return true;
}

/* Whether to announce a block of `size` that was not counted down. */
static bool is_sampled(size_t size)
{
	return !count_down(size) && has_mark(size) && is_listened_to();
}

/* What to request for a sampled block of `size`. */
static size_t padded(size_t size)
{
	return size < MARK_LEAST_BYTES ? MARK_LEAST_BYTES : size;
}

/* Blocks that can be marked; NULL: no memory. */

static void *markable_block(size_t size)
{
	void *block = NULL;

	if (marks_are_by_size)
		return next.malloc(padded(size));
	return next.posix_memalign(&block, MARK_PAGE_BYTES, padded(size)) ? NULL : block;
}

static void *zeroed_markable_block(size_t size)
{
	void *block;

	if (marks_are_by_size)
		return next.calloc(1, padded(size));
	if (next.mallocx)
		return next.mallocx(sampled_bytes(size), JEMALLOC_AT_PAGE | JEMALLOC_ZEROED);
	if (next.zalloc_aligned)
		return next.zalloc_aligned(size, MARK_PAGE_BYTES);
	if (size >= LARGE_BYTES) {
		block = next.calloc(1, size);
		if (!block || may_be_marked(block) || size > COPIED_BYTES_MAX)
			return block;
		next.free(block);
	}
	block = markable_block(size);
	return block ? memset(block, 0, size) : NULL;
}

/* Resizes `old`, so that it can be marked if possible. */
static void *resized_markable_block(void *old, size_t size)
{
	void *block, *moved;

	/* Of an old block and 0 bytes, realloc only frees. */
	if (marks_are_by_size)
		return next.realloc(old, old && !size ? 0 : padded(size));
	if (old && size && next.rallocx)
		return next.rallocx(old, size, JEMALLOC_AT_PAGE);
	if (old && size && next.realloc_aligned)
		return next.realloc_aligned(old, size, MARK_PAGE_BYTES);
	block = next.realloc(old, size);
	if (!block || may_be_marked(block) || size > COPIED_BYTES_MAX)
		return block;
	moved = markable_block(size);
	if (!moved)
		return block;
	memcpy(moved, block, size);
	next.free(block);
	return moved;
}

/* The functions */

static SELDOM void *malloc_slowly(size_t size)
{
	void *block = is_sampled(size) ? markable_block(size) : NULL;

	if (!block)
		return next.malloc(size);
	announce(block, size);
	return block;
}

EXPORT void *malloc(size_t size)
{
	if (likely(count_down(size)))
		return next.malloc(size);
	return WITH_FRAME(malloc_slowly(size));
}

static SELDOM void *calloc_slowly(size_t count, size_t size, size_t bytes)
{
	void *block = is_sampled(bytes) ? zeroed_markable_block(bytes) : NULL;

	if (!block)
		return next.calloc(count, size);
	announce(block, bytes);
	return block;
}

EXPORT void *calloc(size_t count, size_t size)
{
	size_t bytes;

	/* If the product overflows, the allocator reports the error. */
	if (__builtin_mul_overflow(count, size, &bytes) || likely(count_down(bytes)))
		return next.calloc(count, size);
	return WITH_FRAME(calloc_slowly(count, size, bytes));
}

static SELDOM void *moved_from_early(void *old, size_t size)
{
	size_t known = early_block_bytes(old);
	void *block = next.malloc(size);

	return block ? memcpy(block, old, size < known ? size : known) : NULL;
}

static SELDOM void *realloc_slowly(void *old, size_t size)
{
	bool sampled = is_sampled(size), was_sampled;
	void *block;

	if (unlikely(is_early_block(old)))
		return moved_from_early(old, size);
	was_sampled = is_ours(old) && announce_end(old);
	block = sampled ? resized_markable_block(old, size) : next.realloc(old, size);
	if (block && sampled)
		announce(block, size);
	/* A failed realloc leaves the old block unchanged; its original size is unknown. */
	else if (!block && size && was_sampled)
		announce(old, next.malloc_usable_size ? next.malloc_usable_size(old) : 1);
	return block;
}

EXPORT void *realloc(void *old, size_t size)
{
	if (likely(!is_ours(old) && count_down(size)))
		return next.realloc(old, size);
	return WITH_FRAME(realloc_slowly(old, size));
}

EXPORT void *reallocarray(void *old, size_t count, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(count, size, &bytes)) {
		errno = ENOMEM;
		return NULL;
	}
	return WITH_FRAME(realloc(old, bytes));
}

/* `alignment`, raised if necessary until the block can be marked. */
static size_t markable_alignment(size_t alignment)
{
	bool is_power = alignment && !(alignment & (alignment - 1));

	return !marks_are_by_size && is_power && alignment < MARK_PAGE_BYTES ? MARK_PAGE_BYTES : alignment;
}

static SELDOM int posix_memalign_slowly(void **result, size_t alignment, size_t size)
{
	bool sampled = is_sampled(size);
	/* Smaller alignments are an error. */
	bool at_mark = sampled && alignment >= sizeof(void *);
	int error = at_mark ? next.posix_memalign(result, markable_alignment(alignment), padded(size))
			    : next.posix_memalign(result, alignment, size);

	if (!error && sampled)
		announce(*result, size);
	return error;
}

EXPORT int posix_memalign(void **result, size_t alignment, size_t size)
{
	if (likely(count_down(size)))
		return next.posix_memalign(result, alignment, size);
	return WITH_FRAME(posix_memalign_slowly(result, alignment, size));
}

typedef void *aligned_function(size_t alignment, size_t size);

static SELDOM void *aligned_slowly(aligned_function *function, size_t alignment, size_t size)
{
	bool sampled = is_sampled(size);
	void *block = sampled ? function(markable_alignment(alignment), padded(size)) : function(alignment, size);

	if (block && sampled)
		announce(block, size);
	return block;
}

EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
	if (likely(count_down(size)))
		return next.aligned_alloc(alignment, size);
	return WITH_FRAME(aligned_slowly(next.aligned_alloc, alignment, size));
}

EXPORT void *memalign(size_t alignment, size_t size)
{
	if (likely(count_down(size)))
		return next.memalign(alignment, size);
	return WITH_FRAME(aligned_slowly(next.memalign, alignment, size));
}

static SELDOM void *at_page_slowly(void *(*function)(size_t), size_t size)
{
	bool sampled = is_sampled(size);
	void *block = function(sampled ? padded(size) : size);

	if (block && sampled)
		announce(block, size);
	return block;
}

EXPORT void *valloc(size_t size)
{
	return WITH_FRAME(at_page_slowly(next.valloc, size));
}

EXPORT void *pvalloc(size_t size)
{
	return WITH_FRAME(at_page_slowly(next.pvalloc, size));
}

/* Announces the end of such a block. Returns whether the block needs no free by the allocator. */
static SELDOM bool is_freed(void *block)
{
	announce_end(block);
	return is_early_block(block);
}

EXPORT void free(void *block)
{
	if (unlikely(is_ours(block)) && is_freed(block))
		return;
	next.free(block);
}

EXPORT void cfree(void *block)
{
	free(block);
}

/* These functions pass the requested size to the allocator, which is wrong for a sampled block. */

EXPORT void free_sized(void *block, size_t size)
{
	if (!next.free_sized || (is_ours(block) && announce_end(block)))
		free(block);
	else
		next.free_sized(block, size);
}

EXPORT void free_aligned_sized(void *block, size_t alignment, size_t size)
{
	if (!next.free_aligned_sized || (is_ours(block) && announce_end(block)))
		free(block);
	else
		next.free_aligned_sized(block, alignment, size);
}

EXPORT void sdallocx(void *block, size_t size, int flags)
{
	bool was_sampled = is_ours(block) && announce_end(block);

	if (!next.sdallocx)
		free(block);
	else if (was_sampled && next.dallocx)
		next.dallocx(block, flags);
	else
		next.sdallocx(block, size, flags);
}

EXPORT void dallocx(void *block, int flags)
{
	if (is_ours(block))
		announce_end(block);
	if (next.dallocx)
		next.dallocx(block, flags);
	else
		free(block);
}

/* Initialisation */

static uint64_t interval_of(const char *text)
{
	uint64_t bytes = 0;

	for (; *text >= '0' && *text <= '9'; text++) {
		bytes = bytes * 10 + (uint64_t)(*text - '0');
		if (bytes > MAX_SAMPLE_INTERVAL)
			return MAX_SAMPLE_INTERVAL;
	}
	if (*text || !bytes)
		return DEFAULT_SAMPLE_INTERVAL;
	return bytes < MIN_SAMPLE_INTERVAL ? MIN_SAMPLE_INTERVAL : bytes;
}

extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));
extern int pthread_atfork(void (*)(void), void (*)(void), void (*)(void)) __attribute__((weak));

__attribute__((constructor)) static void begin(void)
{
	const char *interval = getenv("BPFLEAK_SAMPLE_INTERVAL");

	if (interval)
		sample_interval = interval_of(interval);
	else
		sampler_clock = clock_without_call();
	if (__register_atfork)
		__register_atfork(NULL, NULL, sampler_after_fork, NULL);
	else if (pthread_atfork)
		pthread_atfork(NULL, NULL, sampler_after_fork);
	find_next_allocator();
	/* The current countdown was drawn for another interval. */
	sampler = (struct sampler){ 0 };
	bpfleak_inside_state = next.can_mark && is_asked_first() ? STATE_ACTIVE : STATE_BYPASSED;
}
