"""Weights of sampled blocks when the program changes the rate of its profile."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bpfleakd.runtimes.go.heap_profile import SampledBuckets
from bpfleakd.tracing.go.sample_weights import SampleWeights

RATE = 524_288


def reading(rate: int, allocs: int, frees: int) -> SampledBuckets:
    one = np.array([0])
    return SampledBuckets([7], one, np.array([4096]), np.array([allocs]), np.array([frees]), rate)


def stands_for(rate: int) -> float:
    return 1 / (1 - math.exp(-4096 / rate)) if rate > 1 else 1.0


@pytest.mark.parametrize(("first", "then"), [(1, RATE), (RATE, 1), (RATE, 0), (RATE, 65_536)])
def test_blocks_count_at_the_rate_at_which_they_were_drawn(first: int, then: int) -> None:
    """The change itself causes no growth; frees count as the mean of the blocks so far."""
    weights = SampleWeights()
    weights.update(reading(first, 100, 40))
    assert weights.live[0] == pytest.approx(stands_for(first))
    weights.update(reading(then, 100, 40))
    assert weights.changed
    assert 60 * weights.live[0] == pytest.approx(60 * stands_for(first))
    weights.update(reading(then, 160, 40))
    live = 60 * stands_for(first) + 60 * stands_for(then)
    assert 120 * weights.live[0] == pytest.approx(live)
    assert weights.allocated[0] == pytest.approx(100 * stands_for(first) + 60 * stands_for(then))
    weights.update(reading(then, 160, 100))
    assert 60 * weights.live[0] == pytest.approx(live / 2)


def test_a_rate_before_the_first_block_is_no_change() -> None:
    """For example when a user turns the profile on."""
    weights = SampleWeights()
    weights.update(reading(0, 0, 0))
    weights.update(reading(RATE, 10, 0))
    assert not weights.changed
    assert weights.live[0] == pytest.approx(stands_for(RATE))


def test_new_buckets_after_a_change() -> None:
    """They have the current rate; a counter that decreases is not an allocation."""
    weights = SampleWeights()
    weights.update(reading(1, 10, 0))
    more = SampledBuckets(
        [7, 8], np.array([0, 1]), np.array([4096, 4096]), np.array([4, 5]), np.array([0, 0]), RATE
    )
    weights.update(more)
    assert weights.live.tolist() == pytest.approx([1.0, stands_for(RATE)])
    assert weights.allocated.tolist() == pytest.approx([10.0, 5 * stands_for(RATE)])
