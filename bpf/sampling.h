/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which blocks are recorded when not all are, and what each recorded block stands for.
 *
 * A block of s bytes is recorded with probability 1 - exp(-s/T), as if a mark fell on one byte in T: large blocks
 * always are. It then stands for
 *
 * 	c = s / (1 - exp(-s/T)) = T f(s/T)              f(x) = x / (1 - exp(-x))
 *
 * bytes, its weight, and for c/s blocks (Horvitz and Thompson 1952: each counts 1 over its probability).
 *
 * Rules:
 *  - c is a whole number, and the block is then drawn with probability s/c. So estimates are unbiased however c was
 *    rounded; f only decides how often blocks are recorded.
 *  - c is stored with the block, so a free subtracts exactly what the block added, even if T has changed.
 *  - Blocks of 0 bytes are sampled as if they had 1.
 *
 * Nothing here depends on the kernel but random_u32(), which the includer defines: tests run this file as it is.
 */

/* Points of f per T. Straight lines between them lie above f, so that c >= s. */
#define CURVE_STEP_SHIFT 3
/* From 16 T on, every block is recorded; the exact probability would miss one in 9 million. */
#define CURVE_END_SHIFT 4

static __always_inline __u64 sampled_bytes(__u64 size)
{
	return size ? size : 1;
}

/* The bytes that a recorded block of `size` stands for. T = 2^shift; shift 0: exact. */
static __always_inline __u64 weight_of(const struct sampling_curve *curve, __u32 shift, __u64 size)
{
	const __u32 fraction_bits = MAX_SAMPLE_SHIFT - CURVE_STEP_SHIFT;
	__u64 bytes = sampled_bytes(size), low, high, fraction;
	__u32 point, x;

	if (shift == 0 || shift > MAX_SAMPLE_SHIFT || bytes >> (shift + CURVE_END_SHIFT))
		return bytes;
	/* In units of the largest T, so that no T needs a division. */
	x = bytes << (MAX_SAMPLE_SHIFT - shift);
	point = (x >> fraction_bits) & (CURVE_STEPS - 1);
	fraction = x & ((1U << fraction_bits) - 1);
	low = curve->points[point];
	high = curve->points[point + 1];
	return (low + ((high - low) * fraction >> fraction_bits)) >> (MAX_SAMPLE_SHIFT - shift);
}

/*
 * Draws a block: true with probability size/weight. 32 random bits decide, except once in 4 billion draws, when 32
 * more do.
 */
static __always_inline bool is_drawn(__u64 size, __u64 weight)
{
	__u64 edge = sampled_bytes(size) << 32, drawn;

	if (weight <= sampled_bytes(size))
		return true;
	drawn = random_u32() * weight;
	if (drawn >= edge)
		return false;
	edge -= drawn;
	return edge >= weight || random_u32() * weight < edge << 32;
}

/* What a recorded block adds to the estimates of its site: bytes, and blocks in units of 1/COUNT_UNIT. */

static __always_inline __u64 estimated_bytes(__u64 size, __u64 weight)
{
	return size ? weight : 0;
}

static __always_inline __u64 estimated_count(__u64 size, __u64 weight)
{
	__u64 bytes = sampled_bytes(size);

	return weight == bytes ? COUNT_UNIT : (weight * COUNT_UNIT + bytes / 2) / bytes;
}

/* What it adds to their variances: (1 - p) / p^2 times its square, in units whose sums fit into 64 bits. */

static __always_inline __u64 bytes_variance(__u64 size, __u64 weight)
{
	return size ? weight * (weight - size) / BYTES_VARIANCE_UNIT : 0;
}

static __always_inline __u64 count_variance(__u64 count)
{
	return (count >> 8) * ((count - COUNT_UNIT) >> 8);
}
