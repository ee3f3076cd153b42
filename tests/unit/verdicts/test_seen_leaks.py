"""Leaks that cannot be seen any more are not forgotten."""

from __future__ import annotations

import numpy as np
import pytest
from bench import simulated_sites as sites

from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.seen_leaks import SeenLeaks


@pytest.mark.parametrize(
    ("interval_bytes", "after_s", "is_unseen"),
    [(1 << 20, 60, True), (1 << 20, 600, True), (1 << 14, 2, True), (1 << 14, 60, False), (0, 60, False)],
)
def test_until_something_would_have_been_seen(interval_bytes: int, after_s: int, is_unseen: bool) -> None:
    """A leak of 50 blocks of 100 bytes a second, seen for a minute."""
    blocks = sites.leak(50, 100)(np.random.default_rng(23), 60.0)
    (histories,) = sites.histories_at([blocks], [60.0])
    leaks = SeenLeaks()
    leaks.see(7, persistence_of(histories), 0)
    ends_s = np.arange(1.0, 61 + after_s)
    intervals_bytes = np.where(ends_s > 60, interval_bytes, 0).astype(np.float64)
    assert (7 in leaks.unseen(ends_s, intervals_bytes)) is is_unseen
    leaks.forget(7)
    assert leaks.unseen(ends_s, intervals_bytes) == {}


def test_where_sampling_is_as_fine_as_before_silence_is_evidence() -> None:
    """However little is recorded: nothing has changed that could hide the leak."""
    blocks = sites.leak(50, 100)(np.random.default_rng(23), 60.0)
    (histories,) = sites.histories_at([blocks], [60.0])
    leaks = SeenLeaks()
    leaks.see(7, persistence_of(histories), 0)
    ends_s = np.arange(1.0, 121.0)
    assert leaks.unseen(ends_s, np.full(120, float(1 << 20))) == {}
    # It was coarser at first: that hides nothing now.
    assert leaks.unseen(ends_s, np.where(ends_s < 10, 1 << 22, 1 << 20).astype(np.float64)) == {}
