"""Histories of figures that are known only at collections."""

from __future__ import annotations

import numpy as np
import pytest

from bpfleakd.model.verdict import Verdict
from bpfleakd.verdicts.collected import as_of_collections
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.site_histories import SiteHistories
from bpfleakd.verdicts.site_verdict import Context, classify_sites


def staircase(collected: list[int], live: list[float], seconds: int) -> SiteHistories:
    """Bins of a second; one site has `live[i]` bytes in 64-byte blocks from second `collected[i]` on."""
    ends_s = np.arange(1.0, seconds + 1)
    low = np.zeros((seconds, 1))
    for second, figure in zip(collected, live, strict=True):
        low[second - 1 :] = figure
    born = np.diff(low, axis=0, prepend=0) / 64
    return SiteHistories(ends_s, low, low / 64, born, low[-1], low[-1] / 64)


def verdict(histories: SiteHistories) -> Verdict:
    found = classify_sites(persistence_of(histories, 45.0), Context())
    return found.of(0).verdict


def test_what_was_live_after_each_collection() -> None:
    """At the end of the bins in which they were reported, with all births since the previous one."""
    found = as_of_collections(staircase([1, 20, 45], [6400, 12800, 32000], 60), np.array([20.0, 45.0]))
    assert found.ends_s.tolist() == [20, 45]
    assert found.low_bytes[:, 0].tolist() == [12800, 32000]
    assert found.low_count[:, 0].tolist() == [200, 500]
    assert found.born_count[:, 0].tolist() == [200, 300]


def test_two_collections_in_a_bin_and_one_in_the_next() -> None:
    """The value at a bin's end is never more than what was live."""
    histories = staircase([1, 3, 4], [100, 300, 200], 4)
    found = as_of_collections(histories, np.array([2.2, 2.9, 4.0]))
    assert found.ends_s.tolist() == [3, 4]
    assert found.low_bytes[:, 0].tolist() == [200, 200]


@pytest.mark.parametrize("collected", [[], [99.0]])
def test_without_a_collection_nothing_is_known(collected: list[float]) -> None:
    """The first bin alone is left."""
    found = as_of_collections(staircase([1], [100], 30), np.array(collected))
    assert found.ends_s.tolist() == [1]
    assert found.low_bytes.tolist() == [[100]]


def test_the_time_since_the_last_collection_is_no_silence() -> None:
    """A heap that doubles between collections is collected ever more seldom."""
    collected = [5, 12, 22, 36, 56, 84, 124]
    histories = staircase(collected, [(1 << 20) * second / 5 for second in collected], 300)
    assert verdict(histories) is not Verdict.LEAK
    assert verdict(as_of_collections(histories, np.array(collected, np.float64))) is Verdict.LEAK


def test_two_collections_are_too_few() -> None:
    """Freed memory in between may be garbage of one moment or churn; this is unknown."""
    histories = as_of_collections(staircase([1, 20, 45], [6400, 12800, 3200], 60), np.array([20.0, 45.0]))
    found = classify_sites(persistence_of(histories, 45.0), Context()).of(0)
    assert found.verdict is Verdict.UNKNOWN
    assert found.reason == "too few garbage collections since the attach to tell: 2"
