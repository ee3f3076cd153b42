"""The history of all call sites of a process on one axis of time, in bounded memory.

Time is cut into bins. For each site, a bin has the least live figures (bytes and blocks) and the number of
blocks born in it: what a verdict needs.

Rules:
  - A bin ends with the last reading in it, and begins where the one before ended. The first begins at the
    start of the recording, with nothing live.
  - A bin is `BIN_NS` wide at first. When there are too many, two neighbours are merged: those that are
    narrowest together for their age. So the resolution is always a fixed share of the age.
  - A bin stores the sites that changed in it, 24 bytes each, with their figures before it. The least of any
    other site is its figure after the bin, which is found by going back from now.
  - Time without readings has bins too, of equal width and at most `GAP_BINS_MAX`: its changes show in the
    first reading after it, but the birth times of live blocks are known.
  - At most `BINS_MAX` bins; fewer, but at least `BINS_MIN`, where they store more than `CELLS_MAX` changes.
  - The cost of a reading depends on the number of changes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.table.table_checkpoint import TimelineCheckpoint, packed, unpacked

BIN_NS = 1_000_000_000
BINS_MIN = 32
BINS_MAX = 64
CELLS_MAX = 2_000_000
GAP_BINS_MAX = 12

_NS_PER_S = 1_000_000_000

Column = NDArray[np.float32]


class TimelineColumns(Struct, frozen=True):
    """Some sites' part of a timeline: row i is the bin that ends at `ends_s[i]`, column j is site j.

    Seconds are since the start of the recording; a bin begins where the one before ends, the first at 0. Its
    first reading was at `firsts_s`.
    `low_bytes` and `low_count` are the least live figures in the bin, `born_count` is the number of blocks
    born in it; `all_born_count` that of all sites.
    """

    ends_s: NDArray[np.float64]
    firsts_s: NDArray[np.float64]
    low_bytes: NDArray[np.float64]
    low_count: NDArray[np.float64]
    born_count: NDArray[np.float64]
    all_born_count: NDArray[np.float64]


class PastFigures(Struct, frozen=True):
    """The least live figures between two times, by row: bytes (rounded to 24 bits) and blocks."""

    start_ns: int
    end_ns: int
    low_bytes: NDArray[np.float32]
    low_count: NDArray[np.float32]


class _Bin(Struct):
    """The rows that changed in a bin: their figures before it, the least in it, and births.

    `first_ns` is the time of the first reading in it, `all_born` the births in all rows, also of those that
    are forgotten since.
    """

    start_ns: int
    first_ns: int
    end_ns: int
    all_born: float
    rows: NDArray[np.intp]
    before_bytes: Column
    before_count: Column
    low_bytes: Column
    low_count: Column
    born_count: Column


class Timeline:
    """Bins of a recording that began at `began_ns` (CLOCK_MONOTONIC).

    Bins from before `held_ns` do not age, and stay apart from later ones; None: all age.
    """

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.held_ns: int | None = None
        self._bins: list[_Bin] = []
        # The last reading, by row.
        self._live_bytes: Column = np.zeros(0, np.float32)
        self._live_count: Column = np.zeros(0, np.float32)
        self._allocated_count: NDArray[np.int64] = np.zeros(0, np.int64)
        # The place in the newest bin, by row, or -1.
        self._places: NDArray[np.intp] = np.zeros(0, np.intp)

    def __len__(self) -> int:
        return len(self._bins)

    @property
    def edges_ns(self) -> NDArray[np.int64]:
        """The edges of the bins: one more than there are bins."""
        return np.array([self.began_ns, *(one.end_ns for one in self._bins)], np.int64)

    def update(
        self,
        now_ns: int,
        rows: NDArray[np.intp],
        live_bytes: NDArray[np.int64],
        live_count: NDArray[np.int64],
        allocated_count: NDArray[np.int64],
    ) -> None:
        """Record a reading: these rows, each at most once, have changed to these figures."""
        self._lengthen(int(rows.max(initial=-1)) + 1)
        newest = self._bins[-1] if self._bins else None
        begins = newest is None or now_ns - newest.start_ns > BIN_NS
        if newest is None or begins:
            newest = self._begin(now_ns)
        newest.end_ns = max(newest.end_ns, now_ns)
        self._add(newest, rows[self._places[rows] < 0])
        places = self._places[rows]
        for low, live in ((newest.low_bytes, live_bytes), (newest.low_count, live_count)):
            # The figures before the first reading of a bin belong to the bin before.
            low[places] = live if begins else np.minimum(low[places], live)
        born_count = allocated_count - self._allocated_count[rows]
        newest.born_count[places] += born_count
        newest.all_born += float(born_count.sum())
        self._live_bytes[rows], self._live_count[rows] = live_bytes, live_count
        self._allocated_count[rows] = allocated_count

    def leave_gap(self, now_ns: int) -> None:
        """Add bins for the time without readings before the reading at `now_ns`, which is recorded next."""
        start_ns = int(self.edges_ns[-1])
        parts = min(GAP_BINS_MAX, (now_ns - start_ns) // BIN_NS)
        for part in range(1, parts):
            self._begin(start_ns + (now_ns - start_ns) * part // parts)

    def at(self, time_ns: int, sites: int) -> PastFigures:
        """The bin that contains a time, for the first `sites` rows; else the first or newest bin.

        Raises ValueError without bins.
        """
        if not self._bins:
            raise ValueError("nothing was read yet")
        wanted = next((one for one in self._bins if time_ns <= one.end_ns), self._bins[-1])
        _bin, low_bytes, low_count, _born_count = next(
            figures for figures in self._backwards(np.arange(sites)) if figures[0] is wanted
        )
        return PastFigures(wanted.start_ns, wanted.end_ns, low_bytes, low_count)

    def gained_bytes(self, rows: NDArray[np.intp], edge_ns: int) -> NDArray[np.float64]:
        """The gain of these rows, each named once, since an edge; figures have 24 bits."""
        columns = self._columns_of(rows)
        before_bytes = self._live_bytes[rows].astype(np.float64)
        for one in reversed(self._bins):
            if one.end_ns <= edge_ns:
                break
            column, known = _known(columns, one)
            before_bytes[column] = one.before_bytes[known]
        return self._live_bytes[rows] - before_bytes

    def columns(self, rows: NDArray[np.intp]) -> TimelineColumns:
        """The history of the sites of these rows, each named at most once."""
        shape = len(self._bins), len(rows)
        low_bytes, low_count, born_count = np.empty(shape), np.empty(shape), np.empty(shape)
        for place, (_bin, *figures) in enumerate(self._backwards(rows), 1):
            low_bytes[-place], low_count[-place], born_count[-place] = figures
        ends_s = (self.edges_ns[1:] - self.began_ns) / _NS_PER_S
        firsts_s = (np.array([one.first_ns for one in self._bins], np.int64) - self.began_ns) / _NS_PER_S
        all_born_count = np.array([one.all_born for one in self._bins], np.float64)
        return TimelineColumns(ends_s, firsts_s, low_bytes, low_count, born_count, all_born_count)

    def checkpoint(self, rows: NDArray[np.intp]) -> TimelineCheckpoint:
        """The checkpoint of the sites of these rows."""
        columns = self.columns(rows)
        return TimelineCheckpoint(
            self.began_ns,
            [one.end_ns for one in self._bins],
            [one.first_ns for one in self._bins],
            packed(np.vstack([columns.low_bytes, self._live_bytes[rows]])),
            packed(np.vstack([columns.low_count, self._live_count[rows]])),
            packed(columns.born_count),
            self._allocated_count[rows].tolist(),
            columns.all_born_count.tolist(),
        )

    @classmethod
    def restored(cls, checkpoint: TimelineCheckpoint) -> Timeline:
        """Restore the timeline, its sites in the order of the saved rows.

        Raises ValueError if it is not one.
        """
        edges_ns = [checkpoint.began_ns, *checkpoint.ends_ns]
        bins, sites = len(checkpoint.ends_ns), len(checkpoint.allocated_count)
        if bins > BINS_MAX or any(start_ns >= end_ns for start_ns, end_ns in pairwise(edges_ns)):
            raise ValueError("bins that are out of order")
        if len(checkpoint.firsts_ns) != bins:
            raise ValueError("bins without a first reading")
        low_bytes = unpacked(checkpoint.lows_bytes, bins + 1, sites)
        low_count = unpacked(checkpoint.lows_count, bins + 1, sites)
        born_count = unpacked(checkpoint.births, bins, sites)
        timeline = cls(checkpoint.began_ns)
        timeline._lengthen(sites)
        timeline._live_bytes[:sites], timeline._live_count[:sites] = low_bytes[-1], low_count[-1]
        timeline._allocated_count[:sites] = checkpoint.allocated_count
        all_born = checkpoint.all_born_count or [0.0] * bins
        if len(all_born) != bins:
            raise ValueError("bins without the births of all sites")
        nothing = np.zeros((1, sites), np.float32)
        before_bytes, before_count = (np.vstack([nothing, lows]) for lows in (low_bytes, low_count))
        for index, (start_ns, end_ns) in enumerate(pairwise(edges_ns)):
            first_ns = checkpoint.firsts_ns[index]
            # The least of any other site is its figure after the bin.
            rows = np.flatnonzero(
                (low_bytes[index] != low_bytes[index + 1])
                | (low_count[index] != low_count[index + 1])
                | (born_count[index] != 0)
            )
            columns = before_bytes, before_count, low_bytes, low_count, born_count
            figures = (column[index, rows] for column in columns)
            timeline._bins.append(_Bin(start_ns, first_ns, end_ns, all_born[index], rows, *figures))
        if timeline._bins:
            rows = timeline._bins[-1].rows
            timeline._places[rows] = np.arange(len(rows))
        return timeline

    def were_always(
        self,
        rows: NDArray[np.intp],
        live_bytes: NDArray[np.int64],
        live_count: NDArray[np.int64],
        allocated_count: NDArray[np.int64],
    ) -> None:
        """Treat these rows, whose past is unknown, as if they had had these figures from the beginning."""
        self._lengthen(int(rows.max(initial=-1)) + 1)
        self._live_bytes[rows], self._live_count[rows] = live_bytes, live_count
        self._allocated_count[rows] = allocated_count

    def hand_over(self, rows: NDArray[np.intp], heirs: NDArray[np.intp]) -> None:
        """Add the past of these rows, each named once, to that of their `heirs`, and drop the rows.

        No row is an heir; several rows may have one. The least of a sum is at least that of its parts
        together, so no gain is overstated.
        """
        unique, to = np.unique(heirs, return_inverse=True)
        involved, to = np.concatenate([rows, unique]), np.concatenate([to, np.arange(len(unique))])
        columns = self._columns_of(involved)
        is_involved = columns >= 0

        def summed(column: Column) -> Column:
            return np.bincount(to, column, len(unique)).astype(np.float32)

        after = self._live_bytes[involved], self._live_count[involved]
        self._live_bytes[unique], self._live_count[unique] = map(summed, after)
        for place in reversed(range(len(self._bins))):
            one = self._bins[place]
            column, known = _known(columns, one)
            figures = [*after, *after, np.zeros(len(involved), np.float32)]
            for index, stored in enumerate(_figures(one)):
                figures[index] = figures[index].copy()
                figures[index][column] = stored[known]
            changed = np.unique(to[column])
            others = _chosen(one, ~is_involved[one.rows])
            sums = (summed(each)[changed] for each in figures)
            self._bins[place] = _Bin(
                one.start_ns,
                one.first_ns,
                one.end_ns,
                one.all_born,
                np.concatenate([others.rows, unique[changed]]),
                *(np.concatenate(both) for both in zip(_figures(others), sums, strict=True)),
            )
            after = figures[0], figures[1]
        self.forget(rows)

    def forget(self, rows: NDArray[np.intp]) -> None:
        """Drop everything about these rows: other sites may reuse them."""
        is_kept = np.ones(len(self._places), bool)
        is_kept[rows] = False
        self._bins = [_chosen(one, is_kept[one.rows]) for one in self._bins]
        for column in (self._live_bytes, self._live_count, self._allocated_count):
            column[rows] = 0
        self._places[rows] = -1
        if self._bins:
            newest = self._bins[-1].rows
            self._places[newest] = np.arange(len(newest))

    def _backwards(self, rows: NDArray[np.intp]) -> Iterator[tuple[_Bin, Column, Column, Column]]:
        """Yield, from the newest bin on, the least bytes and blocks of these rows, and their births."""
        columns = self._columns_of(rows)
        after_bytes, after_count = self._live_bytes[rows], self._live_count[rows]
        for one in reversed(self._bins):
            column, known = _known(columns, one)
            low_bytes, low_count = after_bytes.copy(), after_count.copy()
            born_count = np.zeros(len(rows), np.float32)
            low_bytes[column], low_count[column] = one.low_bytes[known], one.low_count[known]
            born_count[column] = one.born_count[known]
            yield one, low_bytes, low_count, born_count
            after_bytes[column], after_count[column] = one.before_bytes[known], one.before_count[known]

    def _columns_of(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """The place of each row among `rows`, or -1."""
        self._lengthen(int(rows.max(initial=-1)) + 1)
        columns = np.full(len(self._places), -1)
        columns[rows] = np.arange(len(rows))
        return columns

    def _lengthen(self, length: int) -> None:
        missing = length - len(self._places)
        if missing <= 0:
            return
        # Doubles the capacity, so that each row is moved only a few times.
        missing = max(missing, len(self._places))
        self._live_bytes = _with_zeroes(self._live_bytes, missing)
        self._live_count = _with_zeroes(self._live_count, missing)
        self._allocated_count = _with_zeroes(self._allocated_count, missing)
        self._places = np.concatenate([self._places, np.full(missing, -1)])

    def _begin(self, now_ns: int) -> _Bin:
        """Begin a bin where the one before ended."""
        start_ns = self.began_ns
        if self._bins:
            start_ns = self._bins[-1].end_ns
            self._places[self._bins[-1].rows] = -1
        columns = (np.zeros(0, np.float32) for _column in range(5))
        self._bins.append(_Bin(start_ns, now_ns, now_ns, 0.0, np.zeros(0, np.intp), *columns))
        while self._has_too_many():
            self._merge_two(now_ns)
        return self._bins[-1]

    def _add(self, newest: _Bin, rows: NDArray[np.intp]) -> None:
        """Add rows to the newest bin that have not changed in it so far."""
        if not len(rows):
            return
        self._places[rows] = np.arange(len(newest.rows), len(newest.rows) + len(rows))
        newest.rows = np.concatenate([newest.rows, rows])
        live_bytes, live_count = self._live_bytes[rows], self._live_count[rows]
        newest.before_bytes = np.concatenate([newest.before_bytes, live_bytes])
        newest.before_count = np.concatenate([newest.before_count, live_count])
        newest.low_bytes = np.concatenate([newest.low_bytes, live_bytes])
        newest.low_count = np.concatenate([newest.low_count, live_count])
        newest.born_count = _with_zeroes(newest.born_count, len(rows))

    def _has_too_many(self) -> bool:
        if len(self._bins) <= BINS_MIN:
            return False
        if len(self._bins) > BINS_MAX:
            return True
        may_have_too_many = len(self._bins) * len(self._places) > CELLS_MAX
        return may_have_too_many and sum(len(one.rows) for one in self._bins) > CELLS_MAX

    def _merge_two(self, now_ns: int) -> None:
        # The newest bin is still filling.
        pairs = list(zip(self._bins[:-2], self._bins[1:-1], strict=True))
        relative = [self._relative_width(earlier, later, now_ns) for earlier, later in pairs]
        index = relative.index(min(relative))
        self._bins[index : index + 2] = [_merged(*pairs[index])]

    def _relative_width(self, earlier: _Bin, later: _Bin, now_ns: int) -> float:
        """How wide two bins are together, as a part of their age."""
        width_ns, held_ns = later.end_ns - earlier.start_ns, self.held_ns
        if held_ns is None or earlier.start_ns >= held_ns:
            return width_ns / (now_ns - later.end_ns + BIN_NS)
        return width_ns / (held_ns - later.end_ns + BIN_NS) if later.end_ns <= held_ns else math.inf


def _known(columns: NDArray[np.intp], one: _Bin) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The places of a bin whose rows have a column, and these columns."""
    column = columns[one.rows]
    known = column >= 0
    return column[known], known


def _figures(one: _Bin) -> tuple[Column, Column, Column, Column, Column]:
    return one.before_bytes, one.before_count, one.low_bytes, one.low_count, one.born_count


def _chosen(one: _Bin, chosen: NDArray[np.bool_]) -> _Bin:
    figures = (column[chosen] for column in _figures(one))
    return _Bin(one.start_ns, one.first_ns, one.end_ns, one.all_born, one.rows[chosen], *figures)


def _merged(earlier: _Bin, later: _Bin) -> _Bin:
    rows = np.union1d(earlier.rows, later.rows)
    of_earlier, of_later = np.searchsorted(rows, earlier.rows), np.searchsorted(rows, later.rows)

    def low(before: Column, low_earlier: Column, low_later: Column) -> Column:
        # A row that did not change in the earlier bin had its figure before the later one all the time.
        least = np.empty(len(rows), np.float32)
        least[of_later] = before
        least[of_earlier] = low_earlier
        least[of_later] = np.minimum(least[of_later], low_later)
        return least

    def before(earlier: Column, later: Column) -> Column:
        column = np.empty(len(rows), np.float32)
        column[of_later] = later
        column[of_earlier] = earlier
        return column

    born_count = np.zeros(len(rows), np.float32)
    born_count[of_earlier] += earlier.born_count
    born_count[of_later] += later.born_count
    return _Bin(
        earlier.start_ns,
        earlier.first_ns,
        later.end_ns,
        earlier.all_born + later.all_born,
        rows,
        before(earlier.before_bytes, later.before_bytes),
        before(earlier.before_count, later.before_count),
        low(later.before_bytes, earlier.low_bytes, later.low_bytes),
        low(later.before_count, earlier.low_count, later.low_count),
        born_count,
    )


_Number = TypeVar("_Number", bound=np.number[Any])


def _with_zeroes(column: NDArray[_Number], count: int) -> NDArray[_Number]:
    return np.concatenate([column, np.zeros(count, column.dtype)])
