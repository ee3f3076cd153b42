"""Knowledge of the time without readings."""

from __future__ import annotations

import numpy as np

from bpfleakd.table.gaps import bins_in_gaps, births_in_gaps, live_in_gaps

S = 1_000_000_000
EDGES_NS = np.array([0, 1, 2, 4, 6, 7], np.int64) * S


def column(*figures: float) -> np.ndarray:
    return np.array(figures, float)[:, None]


def test_the_bins_of_a_gap() -> None:
    """Also those that it covers partly, and none of those that are long over."""
    gaps = bins_in_gaps(EDGES_NS, [(2 * S, 6 * S), (7 * S, 9 * S), (S // 2, S)])
    assert [bins.tolist() for bins in gaps] == [[2, 3], [0]]
    assert bins_in_gaps(EDGES_NS, []) == []


def test_what_survives_was_live() -> None:
    """And not more than was read after the gap; bins outside are as they were."""
    gaps = bins_in_gaps(EDGES_NS, [(2 * S, 6 * S)])
    low, survivors = column(1, 2, 2, 8, 9), column(1, 1, 3, 5, 1)
    assert live_in_gaps(low, survivors, gaps).tolist() == column(1, 2, 5, 8, 9).tolist()
    assert live_in_gaps(low, column(0, 0, 0, 5, 1), gaps).tolist() == low.tolist()
    assert live_in_gaps(low, survivors, []) is low


def test_births_are_those_of_survivors_and_of_others_evenly() -> None:
    """Their sum is the counted number, or the survivors if these are more."""
    gaps = bins_in_gaps(EDGES_NS, [(2 * S, 6 * S)])
    born = column(1, 1, 0, 20, 3)
    births = births_in_gaps(born, column(0, 0, 4, 6, 1), gaps, EDGES_NS)
    assert births.tolist() == column(1, 1, 9, 11, 3).tolist()
    births = births_in_gaps(born, column(0, 0, 15, 6, 1), gaps, EDGES_NS)
    assert births.tolist() == column(1, 1, 15, 6, 3).tolist()
