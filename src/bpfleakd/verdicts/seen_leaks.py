"""Remembers the leaks that were found: one stays a leak until there is evidence against it.

Rules:
  - A leak found by evidence is remembered with its rate and its rate of steps.
  - It stays one while it grows and nothing contradicts it, though it may be too irregular to be found now:
    a leak in bursts rises evenly at some moments only.
  - It ends when it has stopped, slows down like a cache (by more than the load of its process falls), or its
    old blocks die or are replaced.
  - That nothing is seen is no evidence while nothing can be seen: while a table is full and new memory is
    counted elsewhere; in a new window of tracing, or after sampling became coarser, until _ENOUGH of its
    steps would have been recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.verdicts.persistence import Persistence
from bpfleakd.verdicts.site_verdict import Classification

# None of four steps: 2 % (Poisson).
_ENOUGH = 4.0


class SeenLeak(Struct, frozen=True):
    """A leak as last seen, with blocks of `block_bytes` and `steps_per_s`.

    `is_earlier` if that was in an earlier window of tracing.
    """

    rate_bytes_per_s: float
    seen_s: float
    steps_per_s: float
    blocks_a_step: float
    block_bytes: float
    is_earlier: bool = False


class SeenLeaks:
    """Leaks by row of their table. Times are in seconds since the recording began."""

    def __init__(self, leaks: Mapping[int, SeenLeak] | None = None) -> None:
        self._leaks = dict(leaks or {})

    def settle(
        self,
        found: Classification,
        sites: NDArray[np.intp],
        ends_s: NDArray[np.float64],
        intervals_bytes: NDArray[np.float64],
    ) -> None:
        """Remember the leaks that were found, and keep those from before that nothing contradicts.

        `sites` has the site of `found` in each row, or -1: leaks in such rows stay known. `ends_s` are the
        ends of bins of time, with the sampling interval of each.
        """
        is_leak = found.leaks
        rows = np.flatnonzero(sites >= 0)
        for row in rows[is_leak[sites[rows]]].tolist():
            self._leaks[row] = _seen(found.measured, int(sites[row]))
        for row, leak in list(self._leaks.items()):
            site = int(sites[row]) if row < len(sites) else -1
            if site < 0 or is_leak[site]:
                continue
            if found.goes_on(site):
                found.keep_leak(site, leak.rate_bytes_per_s, is_earlier=leak.is_earlier)
            elif not found.is_hidden(site) and not _may_be_unseen(leak, ends_s, intervals_bytes):
                self.forget(row)
            elif leak.is_earlier:
                found.keep_leak(site, leak.rate_bytes_per_s, is_earlier=True)
            else:
                found.keep_unseen_leak(site, leak.rate_bytes_per_s, leak.seen_s)

    def expect(self, row: int, leak: SeenLeak) -> None:
        """Remember a leak of an earlier window, whose site has turned up in a row."""
        self._leaks[row] = replace(leak, seen_s=0.0, is_earlier=True)

    def forget(self, row: int) -> None:
        """Forget a leak after evidence against it; does nothing if there was no leak."""
        self._leaks.pop(row, None)

    def are_known(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of the rows have a known leak."""
        return np.isin(rows, list(self._leaks))

    def of(self, rows: Iterable[int]) -> dict[int, SeenLeak]:
        """The leaks in these rows."""
        return {row: self._leaks[row] for row in rows if row in self._leaks}


def _seen(measured: Persistence, site: int) -> SeenLeak:
    window_s = max(float(measured.window_s[site]), 1.0)
    steps = max(float(measured.window_steps[site]), 1.0)
    gained_count = max(float(measured.gained_count[site]), 1.0)
    block_bytes = max(float(measured.gained_bytes[site]), 1.0) / gained_count
    seen_s = measured.observed_s - float(measured.silence_s[site])
    rate = float(measured.rate_bytes_per_s[site])
    return SeenLeak(rate, seen_s, steps / window_s, gained_count / steps, block_bytes)


def _may_be_unseen(leak: SeenLeak, ends_s: NDArray[np.float64], intervals_bytes: NDArray[np.float64]) -> bool:
    """Whether too little of a leak would have been seen since for its absence to be evidence.

    If sampling is as fine as before in the same window, a leak that is not seen has ended.
    """
    hides = leak.is_earlier or _is_coarser(leak, ends_s, intervals_bytes)
    return hides and _expected_steps(leak, ends_s, intervals_bytes) < _ENOUGH


def _is_coarser(leak: SeenLeak, ends_s: NDArray[np.float64], intervals_bytes: NDArray[np.float64]) -> bool:
    """Whether sampling became coarser after the leak was last seen."""
    # Includes the bin before, which contains nothing of the later sampling.
    since = intervals_bytes[max(0, int(np.searchsorted(ends_s, leak.seen_s)) - 1) :]
    return len(since) > 0 and bool(since.max() > since[0])


def _expected_steps(
    leak: SeenLeak, ends_s: NDArray[np.float64], intervals_bytes: NDArray[np.float64]
) -> float:
    widths_s = np.diff(ends_s, prepend=0.0)
    since_s = np.clip(ends_s - leak.seen_s, 0.0, widths_s)
    missed = np.where(intervals_bytes > 0, np.exp(-leak.block_bytes / np.maximum(intervals_bytes, 1e-3)), 0.0)
    seen = 1 - missed ** math.ceil(leak.blocks_a_step)
    return float((since_s * seen).sum()) * leak.steps_per_s
