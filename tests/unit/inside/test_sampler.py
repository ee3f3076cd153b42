"""The sampler of libbpfleak.so: which blocks it takes, and what each of them stands for."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
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
	sampler = (struct sampler){ .last_interval = bytes };
}

static unsigned int wanted;

unsigned int wanted_doublings(void)
{
	return wanted;
}

void want_doublings(unsigned int count)
{
	wanted = count;
}

static time_t now_s;

static time_t clock_of_test(time_t *unused)
{
	(void)unused;
	return now_s;
}

/* Allocates bytes in this second; returns how many blocks had a mark, and adds up what they stand for. */
unsigned long spend(time_t second, uint64_t bytes, size_t size, uint64_t *estimate)
{
	unsigned long found = 0;

	sampler_clock = clock_of_test;
	now_s = second;
	for (uint64_t blocks = bytes / size; blocks; blocks--)
		if (!count_down(size) && has_mark(size)) {
			found++;
			*estimate += weighted_bytes(size);
		}
	return found;
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
    for name in ("marked", "weighted_bytes", "left", "spend"):
        getattr(loaded, name).restype = ctypes.c_uint64
    loaded.marked.argtypes = [ctypes.c_size_t, ctypes.c_ulong]
    loaded.weighted_bytes.argtypes = [ctypes.c_size_t]
    loaded.set_interval.argtypes = [ctypes.c_uint64]
    loaded.spend.argtypes = [ctypes.c_long, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
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


class Paced:
    """A thread that allocates for some seconds: its marks in each, and what they stood for in all."""

    def __init__(self, sampler: ctypes.CDLL) -> None:
        self._sampler = sampler
        self._estimate = ctypes.c_uint64()
        self._second = 1_000
        sampler.set_interval(INTERVAL_BYTES)

    def want_doublings(self, count: int) -> None:
        """As a tracer does."""
        self._sampler.want_doublings(count)

    def spend(self, marks_at_base: int, size: int = 100, *, pause_s: int = 1) -> int:
        """Allocate what has so many marks at the shortest interval; return how many it has."""
        self._second += pause_s
        estimate = ctypes.byref(self._estimate)
        return int(self._sampler.spend(self._second, marks_at_base * INTERVAL_BYTES, size, estimate))

    @property
    def estimate_bytes(self) -> int:
        return self._estimate.value


def test_a_thread_that_allocates_much_is_sampled_more_sparsely(sampler: ctypes.CDLL) -> None:
    """Eight times as sparsely at most, from the first second on."""
    thread = Paced(sampler)

    first, later = thread.spend(80_000), [thread.spend(80_000) for _ in range(5)]

    assert 9_500 < first < 11_500
    assert all(9_500 < marks < 10_500 for marks in later)


def test_a_thread_that_allocates_little_is_sampled_as_ever(sampler: ctypes.CDLL) -> None:
    thread = Paced(sampler)
    assert sum(thread.spend(90) for _ in range(40)) == pytest.approx(3_600, rel=0.07)


@pytest.mark.parametrize(("pause_s", "sparse"), [(1, 3), (10, 0)])
def test_it_is_sampled_as_before_when_it_allocates_little_again(
    sampler: ctypes.CDLL, pause_s: int, sparse: int
) -> None:
    """Within some seconds; after a pause, with its first mark."""
    thread = Paced(sampler)
    thread.spend(40_000)

    seconds = [thread.spend(90, pause_s=pause_s if n == 0 else 1) for n in range(24)]

    assert sum(seconds[sparse + 1 :]) == pytest.approx(90 * (23 - sparse), rel=0.1)


@pytest.mark.parametrize("size", [100, 10_000])
def test_its_estimates_are_unbiased_meanwhile(sampler: ctypes.CDLL, size: int) -> None:
    thread = Paced(sampler)
    seconds = [100, 2_000, 50, 400, 30_000, 30_000, 300, 200, 100, 5_000] * 3

    for marks in seconds:
        thread.spend(marks, size)

    truth = sum(marks * INTERVAL_BYTES // size * size for marks in seconds)
    # An eighth of the marks at least.
    assert thread.estimate_bytes == pytest.approx(truth, rel=FAR / math.sqrt(sum(seconds) / 8))


@pytest.fixture
def wanting(sampler: ctypes.CDLL) -> Iterator[Paced]:
    thread = Paced(sampler)
    yield thread
    thread.want_doublings(0)


def test_a_tracer_may_want_fewer_marks(wanting: Paced) -> None:
    """Besides the thread's own pace, and from its next mark on."""
    before = sum(wanting.spend(100) for _ in range(20))
    wanting.want_doublings(3)
    meanwhile = sum(wanting.spend(100) for _ in range(80))
    wanting.want_doublings(0)
    afterwards = sum(wanting.spend(100) for _ in range(20))

    assert before == pytest.approx(2_000, rel=0.1)
    assert meanwhile == pytest.approx(1_000, rel=0.15)
    assert afterwards == pytest.approx(2_000, rel=0.1)


def test_estimates_are_unbiased_while_tracers_change_their_minds(wanting: Paced) -> None:
    for count in [0, 4, 1, 0, 2, 3] * 20:
        wanting.want_doublings(count)
        wanting.spend(200)

    truth = 120 * (200 * INTERVAL_BYTES // 100 * 100)
    assert wanting.estimate_bytes == pytest.approx(truth, rel=FAR / math.sqrt(120 * 200 / 16))
