/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "sampler.h"

#include <sys/auxv.h>
#include <unistd.h>

#include "probes.h"

_Thread_local struct sampler sampler;
uint64_t sample_interval = DEFAULT_SAMPLE_INTERVAL;
time_t (*sampler_clock)(time_t *);

static uint64_t seeds_drawn;
static uint64_t process_salt;

#define LN_2 2977044472ULL	/* ln 2, in units of 2^-32 */
#define ONE (1ULL << 60)	/* 1, in units of 2^-60 */

/* The output function of SplitMix64 (Steele, Lea and Flood 2014). */
static uint64_t mixed(uint64_t word)
{
	word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
	word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
	return word ^ (word >> 31);
}

static uint64_t random_u64(void)
{
	sampler.random += 0x9e3779b97f4a7c15ULL;
	return mixed(sampler.random);
}

static void seed(void)
{
	const uint64_t *from_kernel = (const uint64_t *)getauxval(AT_RANDOM);
	uint64_t number = __atomic_add_fetch(&seeds_drawn, 1, __ATOMIC_RELAXED);

	sampler.random = mixed(mixed((from_kernel ? *from_kernel : 0) ^ process_salt) + number);
	sampler.interval = sample_interval;
	sampler.is_seeded = true;
}

/* -ln(u) of a random u between 0 and 1, in units of 2^-32: exponentially distributed with mean 1. */
static uint64_t random_exponential(void)
{
	uint64_t word = random_u64() | 1, log = 0;
	int zeroes = __builtin_clzll(word), bit;
	uint64_t mantissa = word << zeroes;

	/* The binary logarithm of the mantissa (1 to 2), bit by bit: a square has twice the logarithm. */
	for (bit = 31; bit >= 0; bit--) {
		unsigned __int128 square = (unsigned __int128)mantissa * mantissa;

		if (square >> 127) {
			log |= 1ULL << bit;
			mantissa = square >> 64;
		} else {
			mantissa = square >> 63;
		}
	}
	log = ((uint64_t)(zeroes + 1) << 32) - log;
	return (unsigned __int128)log * LN_2 >> 32;
}

static uint64_t distance_to_mark(void)
{
	return (unsigned __int128)random_exponential() * sampler.interval >> 32;
}

/* Counts a mark, and sets the interval to the next one. */
static void pace(void)
{
	uint32_t second;

	sampler.last_interval = sampler.interval;
	if (!sampler_clock)
		return;
	second = (uint32_t)sampler_clock(NULL);
	if (second != sampler.second) {
		if (second != sampler.second + 1)
			sampler.stretch = 0;
		else if (sampler.stretch && sampler.marks < MARKS_PER_S / 2)
			sampler.stretch--;
		sampler.second = second;
		sampler.marks = 0;
	}
	if (++sampler.marks > MARKS_PER_S && sampler.stretch < MAX_STRETCH) {
		sampler.stretch++;
		sampler.marks = 0;
	}
	sampler.interval = sample_interval << (sampler.stretch + wanted_doublings());
}

bool has_mark(size_t size)
{
	if (!sampler.is_seeded) {
		seed();
		sampler.left = distance_to_mark();
		if (count_down(size))
			return false;
	}
	pace();
	sampler.left = distance_to_mark();
	return true;
}

/* 1 - exp(-x) for x between 0 and 1/2, by its series; in units of 2^-60. */
static uint64_t one_minus_exp(uint64_t x)
{
	uint64_t term = x, sum = x;
	uint64_t n;

	for (n = 2; term; n++) {
		term = (uint64_t)((unsigned __int128)term * x >> 60) / n;
		sum = n & 1 ? sum + term : sum - term;
	}
	return sum;
}

uint64_t weighted_bytes(size_t size)
{
	uint64_t bytes = sampled_bytes(size), probability, weight;
	unsigned __int128 interval = sampler.last_interval;
	int doublings = 0;

	/* From here on, a block is missed once in 10^13 times. */
	if (bytes / 32 >= interval)
		return bytes;
	while (2 * (unsigned __int128)bytes > interval) {
		interval *= 2;
		doublings++;
	}
	probability = one_minus_exp(((unsigned __int128)bytes << 60) / interval);
	/* Combined from two halves: 1 - (1 - p)^2 = p (2 - p). */
	while (doublings--)
		probability = (unsigned __int128)probability * (2 * ONE - probability) >> 60;
	weight = (((unsigned __int128)bytes << 60) + probability / 2) / probability;
	return weight < bytes ? bytes : weight;
}

void sampler_after_fork(void)
{
	process_salt = mixed(process_salt + (uint64_t)getpid());
	if (sampler.is_seeded) {
		seed();
		sampler.left = distance_to_mark();
	}
}
