"""The history of all call sites of a process on one axis of time, in bounded memory.

Time is cut into bins. For each site a bin has the least that was live in it (bytes and blocks) and how many
blocks were born in it: what a verdict needs, 12 bytes a site and bin.

Rules:
  - A bin ends with the last reading in it, and begins where the one before ended. The first begins at the
    start of the recording, when there was nothing.
  - A bin is `BIN_NS` wide at first. When there are too many, two neighbours become one: those that are
    narrowest together for their age. So the resolution is a part of the age, whatever the age.
  - At least `BINS_MIN` and at most `BINS_MAX` bins; between them as many as `CELLS_MAX` allows for the number
    of sites: 100,000 sites take 48 MB.
  - A reading costs what has changed, and the beginning of a bin one copy of the figures of all sites.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BINS_MAX", "BINS_MIN", "BIN_NS", "PastFigures", "Timeline", "TimelineColumns"]

BIN_NS = 1_000_000_000
BINS_MIN = 32
BINS_MAX = 64
CELLS_MAX = 4_000_000

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TimelineColumns:
    """Some sites' part of a timeline: row i is of the bin that ends at `ends_s[i]`, column j of site j.

    Seconds are since the start of the recording; a bin begins where the one before ends, the first at 0.
    `low_bytes` and `low_count` are the least that was live in the bin, `born_count` the blocks born in it.
    """

    ends_s: NDArray[np.float64]
    low_bytes: NDArray[np.float64]
    low_count: NDArray[np.float64]
    born_count: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PastFigures:
    """The least that was live between two times, by row: bytes (rounded to 24 bits) and blocks."""

    start_ns: int
    end_ns: int
    low_bytes: NDArray[np.float32]
    low_count: NDArray[np.float32]


@dataclass(slots=True)
class _Bin:
    """Sites that came later are missing at the end of the arrays: they had nothing."""

    start_ns: int
    end_ns: int
    low_bytes: NDArray[np.float32]
    low_count: NDArray[np.float32]
    born_count: NDArray[np.float32]


class Timeline:
    """Bins of a recording that began at `began_ns` (CLOCK_MONOTONIC)."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self._bins: list[_Bin] = []
        self._allocated_before: NDArray[np.int64] = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._bins)

    @property
    def edges_ns(self) -> NDArray[np.int64]:
        """Where bins begin and end: one more than there are bins."""
        return np.array([self.began_ns, *(one.end_ns for one in self._bins)], np.int64)

    def update(
        self,
        now_ns: int,
        changed: NDArray[np.intp],
        live_bytes: NDArray[np.int64],
        live_count: NDArray[np.int64],
        allocated_count: NDArray[np.int64],
    ) -> None:
        """Take in a reading of all sites, row by row, of which the rows `changed` are others than before."""
        sites = len(live_bytes)
        newest = self._bins[-1] if self._bins else None
        if newest is None or now_ns - newest.start_ns > BIN_NS:
            self._begin(now_ns, live_bytes, live_count, allocated_count)
            return
        newest.end_ns = max(newest.end_ns, now_ns)
        newest.low_bytes = _lengthened(newest.low_bytes, sites)
        newest.low_count = _lengthened(newest.low_count, sites)
        newest.born_count = _lengthened(newest.born_count, sites)
        self._allocated_before = _lengthened(self._allocated_before, sites)
        for low, live in ((newest.low_bytes, live_bytes), (newest.low_count, live_count)):
            low[changed] = np.minimum(low[changed], live[changed])
        newest.born_count[changed] = allocated_count[changed] - self._allocated_before[changed]

    def at(self, time_ns: int, sites: int) -> PastFigures:
        """The bin that a time is in, for the first `sites` rows; the first or newest if it is in none.

        ValueError if there are no bins.
        """
        if not self._bins:
            raise ValueError("nothing was read yet")
        found = next((one for one in self._bins if time_ns <= one.end_ns), self._bins[-1])
        low_bytes, low_count = (_lengthened(one, sites) for one in (found.low_bytes, found.low_count))
        return PastFigures(found.start_ns, found.end_ns, low_bytes, low_count)

    def columns(self, rows: NDArray[np.intp]) -> TimelineColumns:
        """The history of the sites of these rows."""
        return TimelineColumns(
            (self.edges_ns[1:] - self.began_ns) / _NS_PER_S,
            _matrix([one.low_bytes for one in self._bins], rows),
            _matrix([one.low_count for one in self._bins], rows),
            _matrix([one.born_count for one in self._bins], rows),
        )

    def _begin(
        self,
        now_ns: int,
        live_bytes: NDArray[np.int64],
        live_count: NDArray[np.int64],
        allocated_count: NDArray[np.int64],
    ) -> None:
        """Begin a bin, where the one before ended, that has this reading in it."""
        if self._bins:
            newest = self._bins[-1]
            self._allocated_before = _lengthened(self._allocated_before, len(newest.born_count))
            self._allocated_before += newest.born_count.astype(np.int64)
        self._allocated_before = _lengthened(self._allocated_before, len(live_bytes))
        born = allocated_count - self._allocated_before
        start_ns = self._bins[-1].end_ns if self._bins else self.began_ns
        self._bins.append(
            _Bin(
                start_ns,
                now_ns,
                live_bytes.astype(np.float32),
                live_count.astype(np.float32),
                born.astype(np.float32),
            )
        )
        while len(self._bins) > min(BINS_MAX, max(BINS_MIN, CELLS_MAX // max(1, len(live_bytes)))):
            self._merge_two(now_ns)

    def _merge_two(self, now_ns: int) -> None:
        # The newest is still filling.
        pairs = list(zip(self._bins[:-2], self._bins[1:-1], strict=True))
        relative = [
            (later.end_ns - earlier.start_ns) / (now_ns - later.end_ns + BIN_NS) for earlier, later in pairs
        ]
        index = relative.index(min(relative))
        earlier, later = pairs[index]
        sites = len(later.low_bytes)
        self._bins[index : index + 2] = [
            _Bin(
                earlier.start_ns,
                later.end_ns,
                np.minimum(_lengthened(earlier.low_bytes, sites), later.low_bytes),
                np.minimum(_lengthened(earlier.low_count, sites), later.low_count),
                _lengthened(earlier.born_count, sites) + later.born_count,
            )
        ]


def _lengthened(column: NDArray, length: int) -> NDArray:
    if len(column) == length:
        return column
    return np.concatenate([column, np.zeros(length - len(column), column.dtype)])


def _matrix(bins: list[NDArray[np.float32]], rows: NDArray[np.intp]) -> NDArray[np.float64]:
    matrix = np.zeros((len(bins), len(rows)))
    for index, column in enumerate(bins):
        there = rows < len(column)
        matrix[index, there] = column[rows[there]]
    return matrix
