"""The sampler of libbpfleak.so: which blocks it takes, and what each of them stands for."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import pytest

from ..elf.building import output_of

INSIDE = Path(__file__).parents[3] / "inside"
INTERVAL_BYTES = 4096
DRAWS = 400_000
FAR = 4.5

WRAPPER = """
#include "sampler.c"

/* How many of `count` blocks have a mark, by a thread that has not drawn yet. */
unsigned long marked(size_t size, unsigned long count)
{
	unsigned long found = 0;

	sampler = (struct sampler){ 0 };
	while (count--)
		found += !count_down(size) && has_mark(size);
	return found;
}

void set_interval(uint64_t bytes)
{
	sample_interval = bytes;
}

uint64_t left(void)
{
	return sampler.left;
}
"""


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory = tmp_path_factory.mktemp("sampler")
    source, library = directory / "wrapper.c", directory / "sampler.so"
    source.write_text(WRAPPER)
    output_of("gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{INSIDE}", "-o", library, source)
    loaded = ctypes.CDLL(str(library))
    for name in ("marked", "weighted_bytes", "left"):
        getattr(loaded, name).restype = ctypes.c_uint64
    loaded.marked.argtypes = [ctypes.c_size_t, ctypes.c_ulong]
    loaded.weighted_bytes.argtypes = [ctypes.c_size_t]
    loaded.set_interval.argtypes = [ctypes.c_uint64]
    loaded.set_interval(INTERVAL_BYTES)
    return loaded


@pytest.mark.parametrize("size", [0, 1, 16, 100, 1_000, 4_096, 10_000, 40_000])
def test_a_block_is_taken_as_often_as_it_should(sampler: ctypes.CDLL, size: int) -> None:
    """With the probability 1 - exp(-s/R), where a block of no bytes counts as one byte."""
    probability = -math.expm1(-max(size, 1) / INTERVAL_BYTES)

    found = sampler.marked(size, DRAWS)

    error = math.sqrt(DRAWS * probability * (1 - probability))
    assert abs(found - DRAWS * probability) <= FAR * error + 1


@pytest.mark.parametrize("interval_bytes", [1_024, 4_096, 524_288, 1 << 32])
def test_a_block_stands_for_its_size_over_the_probability(sampler: ctypes.CDLL, interval_bytes: int) -> None:
    """To the next whole byte, for any size; never for less than it has itself."""
    sampler.set_interval(interval_bytes)
    try:
        for size in [0, 1, 7, 100, 4_095, 4_096, 65_537, 1_000_003, 1 << 24, 3 << 30, 1 << 40, 1 << 46]:
            bytes_ = max(size, 1)
            exact = bytes_ / -math.expm1(-bytes_ / interval_bytes)
            weight = sampler.weighted_bytes(size)
            assert weight >= bytes_
            assert abs(weight - exact) <= 1 + 1e-9 * exact
    finally:
        sampler.set_interval(INTERVAL_BYTES)


def test_a_size_that_nobody_has_leaves_the_countdown_whole(sampler: ctypes.CDLL) -> None:
    """malloc(-1) fails, and what comes after it is sampled as ever."""
    assert sampler.marked((1 << 64) - 1, 3) == 3
    assert sampler.left() < 64 * INTERVAL_BYTES
    assert sampler.marked(INTERVAL_BYTES, 1_000) > 500
