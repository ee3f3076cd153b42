/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which blocks are sampled: marks fall on the bytes that a thread allocates, one in `sample_interval` on average and
 * independently of each other, and a block with a mark is sampled. So a block of s bytes is with the probability
 * p = 1 - exp(-s/R), and then stands for s/p bytes: bpf/sampling.h has the same estimator.
 *
 * Rules:
 *  - The distance to the next mark is counted down in the thread's own memory. It says nothing of what lies behind
 *    (geometric distribution), so that a block with a mark, or a new interval, just draws a new one.
 *  - A block of no bytes counts as one byte.
 *  - Integers only: a program may have its own mind about rounding and floating-point exceptions.
 *  - No lock, no system call: malloc is called from signal handlers, and by children between fork and exec. A signal
 *    between reading and writing the countdown may move a mark, no more.
 */
#ifndef BPFLEAK_SAMPLER_H
#define BPFLEAK_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEFAULT_SAMPLE_INTERVAL (512ULL << 10)
#define MIN_SAMPLE_INTERVAL (1ULL << 10)
#define MAX_SAMPLE_INTERVAL (1ULL << 32)

/* Of a thread. All zero: it has not allocated yet. */
struct sampler {
	/* Bytes without a mark. */
	uint64_t left;
	uint64_t random;
	bool is_seeded;
	/* Looking for the next allocator: next.c. */
	bool is_resolving;
};

extern _Thread_local struct sampler sampler __attribute__((tls_model("initial-exec"), visibility("hidden")));
extern uint64_t sample_interval __attribute__((visibility("hidden")));

static inline uint64_t sampled_bytes(size_t size)
{
	return size + (size == 0);
}

/* Count a block down. False: a mark may be on it, which has_mark() tells. */
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

/* The bytes that a sampled block of `size` stands for. */
uint64_t weighted_bytes(size_t size);

/* The process is the child of a fork: it draws on its own. */
void sampler_after_fork(void);

#endif
