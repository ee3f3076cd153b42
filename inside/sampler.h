/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which blocks are sampled. Marks fall on the bytes that a thread allocates, one in `sample_interval` on average and
 * independently of each other; a block with a mark is sampled. So a block of s bytes is sampled with probability p =
 * 1 - exp(-s/R), and then stands for s/p bytes: the estimator of bpf/sampling.h.
 *
 * Rules:
 *  - A countdown in the thread's own memory has the distance to the next mark. It is memoryless (geometric
 *    distribution), so after a block with a mark, or a change of the interval, the sampler draws a new one.
 *  - A block of 0 bytes counts as 1 byte.
 *  - Integers only: a program may change rounding and floating-point exceptions.
 *  - No lock, no system call: signal handlers call malloc, and so do children between fork and exec. A signal between
 *    reading and writing the countdown may move a mark, no more.
 *  - A thread that meets more than MARKS_PER_S marks a second gets a longer interval, up to MAX_STRETCH doublings: the
 *    price of a program that churns through gigabytes is limited, too. A tracer may want further doublings (probes.h).
 *    The interval only changes at a mark, for the bytes that follow, so estimates stay unbiased.
 */
#ifndef BPFLEAK_SAMPLER_H
#define BPFLEAK_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define DEFAULT_SAMPLE_INTERVAL (512ULL << 10)
#define MIN_SAMPLE_INTERVAL (1ULL << 10)
#define MAX_SAMPLE_INTERVAL (1ULL << 32)

#define MARKS_PER_S 128
#define MAX_STRETCH 3

/* Per thread. All zero: it has not allocated yet. */
struct sampler {
	/* Bytes before the next mark. */
	uint64_t left;
	uint64_t random;
	/* The mean distance from the last mark to the next one; that of the marks before, when the last one was drawn. */
	uint64_t interval;
	uint64_t last_interval;
	/* The marks in the current second of the wall clock, and how often the interval is doubled. */
	uint32_t second;
	uint32_t marks;
	uint8_t stretch;
	bool is_seeded;
	/* The thread is looking up the next allocator: next.c. */
	bool is_resolving;
};

extern _Thread_local struct sampler sampler __attribute__((tls_model("initial-exec"), visibility("hidden")));
/* The shortest interval. */
extern uint64_t sample_interval __attribute__((visibility("hidden")));
/* The time in seconds, without a system call; NULL: all intervals stay the same. */
extern time_t (*sampler_clock)(time_t *) __attribute__((visibility("hidden")));

static inline uint64_t sampled_bytes(size_t size)
{
	return size + (size == 0);
}

/* Counts a block down. False: it may have a mark; has_mark() decides. */
static inline bool count_down(size_t size)
{
	uint64_t left;

	if (__builtin_expect(__builtin_sub_overflow(sampler.left, sampled_bytes(size), &left), 0))
		return false;
	sampler.left = left;
	return true;
}

/* Whether a block that was not counted down has a mark. */
bool has_mark(size_t size);

/* The bytes that a block of `size` with the last mark stands for. */
uint64_t weighted_bytes(size_t size);

/* In the child of a fork: draws a new countdown. */
void sampler_after_fork(void);

#endif
