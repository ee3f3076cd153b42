"""Remembers leaks that finer sampling has shown and that the current sampling cannot show.

Rules:
  - A leak found by evidence is remembered with its rate of steps.
  - After sampling became coarser, it stays a leak until _ENOUGH of its steps would have been recorded, so
    that their absence is evidence. Until then only the earlier evidence counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.verdicts.persistence import Persistence

# None of four steps: 2 % (Poisson).
_ENOUGH = 4.0


class SeenLeak(Struct, frozen=True):
    """A leak as last seen, with blocks of `block_bytes` and `steps_per_s`."""

    rate_bytes_per_s: float
    seen_s: float
    steps_per_s: float
    blocks_a_step: float
    block_bytes: float


class SeenLeaks:
    """Leaks by row of their table. Times are in seconds since the recording began."""

    def __init__(self) -> None:
        self._leaks: dict[int, SeenLeak] = {}

    def see(self, row: int, measured: Persistence, site: int) -> None:
        """Record that the site leaks, according to its measurements."""
        window_s = max(float(measured.window_s[site]), 1.0)
        steps = max(float(measured.window_steps[site]), 1.0)
        gained_count = max(float(measured.gained_count[site]), 1.0)
        block_bytes = max(float(measured.gained_bytes[site]), 1.0) / gained_count
        seen_s = measured.observed_s - float(measured.silence_s[site])
        rate = float(measured.rate_bytes_per_s[site])
        self._leaks[row] = SeenLeak(rate, seen_s, steps / window_s, gained_count / steps, block_bytes)

    def forget(self, row: int) -> None:
        """Forget a leak after evidence against it; does nothing if there was no leak."""
        self._leaks.pop(row, None)

    def unseen(
        self, ends_s: NDArray[np.float64], intervals_bytes: NDArray[np.float64]
    ) -> dict[int, SeenLeak]:
        """The leaks of which hardly anything would have been seen since, given each bin's sampling interval.

        If sampling is as fine as before, a leak that is not seen has ended.
        """
        return {
            row: leak
            for row, leak in self._leaks.items()
            if _is_coarser(leak, ends_s, intervals_bytes) and is_unseen(leak, ends_s, intervals_bytes)
        }

    def of(self, rows: Iterable[int]) -> dict[int, SeenLeak]:
        """The leaks in these rows."""
        return {row: self._leaks[row] for row in rows if row in self._leaks}


def is_unseen(leak: SeenLeak, ends_s: NDArray[np.float64], intervals_bytes: NDArray[np.float64]) -> bool:
    """Whether too little of a leak would have been seen since for its absence to be evidence."""
    return _expected_steps(leak, ends_s, intervals_bytes) < _ENOUGH


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
