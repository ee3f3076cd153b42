"""The arithmetic of bpf/sampling.h, compiled as it is, against the formulas.

random_u32 is a generator with a fixed seed, so that what is claimed of random draws is the same in every run.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy as np
import pytest

from bpfleakd.analysis.sampling_rate import MAX_SHIFT, MIN_SHIFT
from bpfleakd.kernel.abi import COUNT_UNIT, CURVE_STEPS, SAMPLING_CURVE
from bpfleakd.kernel.compilation.source import bpf_directory
from bpfleakd.kernel.sampling import curve
from bpfleakd.table.estimates import BYTES_VARIANCE_UNIT

from ..elf.building import output_of

SOURCE = """
#include <linux/types.h>
#include <linux/stddef.h>
#include <stdbool.h>
#include "abi.h"

/* xorshift64*, Vigna 2016; or what a test wants to be drawn. */
#define SEED 123456789123ULL
static __u64 state = SEED;
static __u32 wanted[2];
static int wanted_left;

static __u32 random_u32(void)
{
	if (wanted_left)
		return wanted[--wanted_left];
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * 0x2545f4914f6cdd1dULL >> 32;
}

#include "sampling.h"

__u64 weight(const void *curve, __u32 shift, __u64 size) { return weight_of(curve, shift, size); }
__u64 bytes(__u64 size, __u64 weight) { return estimated_bytes(size, weight); }
__u64 count(__u64 size, __u64 weight) { return estimated_count(size, weight); }
__u64 variance_of_bytes(__u64 size, __u64 weight) { return bytes_variance(size, weight); }
__u64 variance_of_count(__u64 count) { return count_variance(count); }

int drawn_with(__u64 size, __u64 weight, __u32 first, __u32 second)
{
	wanted[1] = first;
	wanted[0] = second;
	wanted_left = 2;
	int drawn = is_drawn(size, weight);
	wanted_left = 0;
	return drawn;
}

/* Of each of `samples` programs with the same blocks: the estimates of their bytes and number. */
void estimates(const void *curve, __u32 *shifts, __u64 *sizes, int blocks, int samples, double *out)
{
	state = SEED;
	for (int sample = 0; sample < samples; sample++, out += 4) {
		__u64 sums[4] = {};

		for (int i = 0; i < blocks; i++) {
			__u64 weight = weight_of(curve, shifts[i], sizes[i]), count;

			if (!is_drawn(sizes[i], weight))
				continue;
			count = estimated_count(sizes[i], weight);
			sums[0] += estimated_bytes(sizes[i], weight);
			sums[1] += count;
			if (count != COUNT_UNIT) {
				sums[2] += bytes_variance(sizes[i], weight);
				sums[3] += count_variance(count);
			}
		}
		out[0] = sums[0];
		out[1] = (double)sums[1] / COUNT_UNIT;
		out[2] = (double)sums[2] * BYTES_VARIANCE_UNIT;
		out[3] = (double)sums[3] / COUNT_UNIT;
	}
}
"""

SHIFTS = range(MIN_SHIFT, MAX_SHIFT + 1)
SIZES = sorted(
    {0, 1, 2, 3, 8, 16, 23, 101}
    | {(1 << power) + more for power in range(4, 47) for more in (-1, 0, 1)}
    | {3 * (1 << power) for power in range(3, 45)}
)


class Sampling:
    """The compiled header."""

    def __init__(self, library: Path) -> None:
        self._c = ctypes.CDLL(str(library))
        for name in ("weight", "bytes", "count", "variance_of_bytes", "variance_of_count"):
            getattr(self._c, name).restype = ctypes.c_uint64
        self._curve = curve()

    def weight(self, shift: int, size: int) -> int:
        return self._c.weight(self._curve, ctypes.c_uint32(shift), ctypes.c_uint64(size))

    def count(self, size: int, weight: int) -> int:
        return self._c.count(ctypes.c_uint64(size), ctypes.c_uint64(weight))

    def bytes(self, size: int, weight: int) -> int:
        return self._c.bytes(ctypes.c_uint64(size), ctypes.c_uint64(weight))

    def variances(self, size: int, weight: int) -> tuple[int, int]:
        count = ctypes.c_uint64(self.count(size, weight))
        of_bytes = self._c.variance_of_bytes(ctypes.c_uint64(size), ctypes.c_uint64(weight))
        return of_bytes, self._c.variance_of_count(count)

    def is_drawn(self, size: int, weight: int, random: int) -> bool:
        """Whether 64 random bits mean that the block is recorded."""
        first, second = ctypes.c_uint32(random >> 32), ctypes.c_uint32(random & 0xFFFFFFFF)
        return bool(self._c.drawn_with(ctypes.c_uint64(size), ctypes.c_uint64(weight), first, second))

    def estimates(self, shifts: list[int], sizes: list[int], samples: int) -> np.ndarray:
        """A row a sample: bytes, count, and their variances."""
        out = np.zeros((samples, 4))
        shift_array, size_array = np.array(shifts, np.uint32), np.array(sizes, np.uint64)
        pointers = (shift_array.ctypes.data, size_array.ctypes.data, len(sizes), samples, out.ctypes.data)
        types = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
        self._c.estimates(self._curve, *(kind(value) for kind, value in zip(types, pointers, strict=True)))
        return out


@pytest.fixture(scope="module")
def sampling(tmp_path_factory: pytest.TempPathFactory) -> Sampling:
    directory = tmp_path_factory.mktemp("sampling")
    (directory / "sampling.c").write_text(SOURCE)
    library = directory / "sampling.so"
    output_of(
        "gcc",
        "-O2",
        "-Wall",
        "-shared",
        "-fPIC",
        "-I",
        bpf_directory(),
        "-o",
        library,
        directory / "sampling.c",
    )
    return Sampling(library)


def test_the_curve_lies_above_the_formula() -> None:
    """By less than one part in 3,000, on the lines between its points too: s/c is a probability."""
    points = np.frombuffer(curve(), SAMPLING_CURVE)["points"][0] / (1 << MAX_SHIFT)
    x = np.linspace(1e-9, 16, 10_001)
    lines = np.interp(x, np.arange(CURVE_STEPS + 1) * (16 / CURVE_STEPS), points)
    exact = x / -np.expm1(-x)
    assert (lines >= exact).all()
    assert (lines >= x).all()
    assert (lines / exact - 1).max() < 1 / 3_000


def test_exact_is_exact(sampling: Sampling) -> None:
    """Without sampling a block stands for itself."""
    for size in SIZES:
        weight = sampling.weight(0, size)
        assert weight == max(size, 1)
        assert sampling.is_drawn(size, weight, (1 << 64) - 1)
        assert sampling.bytes(size, weight) == size
        assert sampling.count(size, weight) == COUNT_UNIT


@pytest.mark.parametrize("shift", SHIFTS)
def test_blocks_are_recorded_as_often_as_they_should(sampling: Sampling, shift: int) -> None:
    """1 - exp(-s/T) for all magnitudes, as near as the curve and whole bytes let it be."""
    for size in SIZES:
        weight = sampling.weight(shift, size)
        probability = -math.expm1(-max(size, 1) / (1 << shift))
        assert weight >= max(size, 1)
        assert max(size, 1) / weight == pytest.approx(probability, rel=1 / 2_500)
        if size >= 16 << shift:
            assert weight == size


@pytest.mark.parametrize("shift", SHIFTS)
def test_the_coin_falls_with_the_very_probability_that_the_weight_is_made_of(
    sampling: Sampling, shift: int
) -> None:
    """Of 2^64 draws exactly those below s/c record: the limit is at the 64th bit."""
    for size in SIZES:
        weight = sampling.weight(shift, size)
        if weight == max(size, 1):
            continue
        edge = -(-(max(size, 1) << 64) // weight)  # how many draws record
        for random in (0, edge // 2, edge - 1):
            assert sampling.is_drawn(size, weight, random), (size, random)
        for random in (edge, min(edge + 1, (1 << 64) - 1), (1 << 64) - 1):
            assert not sampling.is_drawn(size, weight, random), (size, random)


@pytest.mark.parametrize("shift", SHIFTS)
def test_what_a_block_stands_for(sampling: Sampling, shift: int) -> None:
    """c bytes, c/s blocks, and the variances of both."""
    for size in SIZES:
        weight = sampling.weight(shift, size)
        blocks = weight / max(size, 1)
        assert sampling.bytes(size, weight) == (weight if size else 0)
        assert sampling.count(size, weight) == pytest.approx(blocks * COUNT_UNIT, abs=0.5)
        if weight == max(size, 1):
            continue
        of_bytes, of_count = sampling.variances(size, weight)
        expected = weight * (weight - size) if size else 0
        assert of_bytes == expected // BYTES_VARIANCE_UNIT
        assert of_count / COUNT_UNIT == pytest.approx(blocks * (blocks - 1), rel=0.01, abs=0.02)


SMALL = [8, 48, 200]
MIXED = [24, 700, 3_000, 20_000]
HUGE = [65_000, 100_000, 1_000_003]


@pytest.mark.parametrize(
    ("sizes", "shifts"),
    [
        (SMALL * 20_000, [12]),
        (MIXED * 8_000, [12]),
        (HUGE * 200, [16]),
        ([300, *MIXED[1:]] * 8_000, [13, 12, 0, 14]),  # the interval changes all the time
    ],
    ids=["small", "mixed", "huge", "changing"],
)
def test_estimates_are_unbiased_and_say_how_far_off_they_are(
    sampling: Sampling, sizes: list[int], shifts: list[int]
) -> None:
    """1,000 programs that allocate the same: mean within 2 standard errors, 95 % intervals in 92 to 98.

    Of the smallest blocks some dozens are drawn: where they are fewer, their number is too skewed for that.
    """
    samples = 1_000
    of_blocks = [shifts[number // len(sizes[:12]) % len(shifts)] for number in range(len(sizes))]

    out = sampling.estimates(of_blocks, sizes, samples)

    for column, truth in ((0, sum(sizes)), (1, len(sizes))):
        values, errors = out[:, column], np.sqrt(out[:, column + 2])
        spread = values.std(ddof=1)
        assert abs(values.mean() - truth) <= 2 * spread / math.sqrt(samples) + 1e-9
        inside = np.abs(values - truth) <= 1.96 * errors + 1e-9
        assert 0.92 <= inside.mean() <= 0.98
        assert math.sqrt(out[:, column + 2].mean()) == pytest.approx(spread, rel=0.1)
