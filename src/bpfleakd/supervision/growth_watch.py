"""Decides whether the memory of a process keeps growing, from readings, in bounded memory.

Time is divided into stretches of equal length, of which only the lowest and the highest reading are stored:
the latest eight form the judged window, the eight before are its past. There are three such windows, each
longer than the last (5 minutes, 15 and 60 by default), so that a slow leak is found too.

A window shows growth if all of this holds:

  - Its floor rises, and its ceiling too: the test of Mann and Kendall over the lowest, and over the highest
    figures of the stretches. One rising flank after a collection of garbage has no rising floor.
  - Both rise all the way: in each step from quarter to quarter of the window by a tenth of the whole at
    least. So neither one jump (a buffer, a cache that fills within half a window) nor growth that has stopped
    counts, but many small steps do.
  - It rises by enough, in bytes and as a share of the process.
  - It exceeds the peak before the window: a heap that swings back up has not grown.

A reading below the window's beginning ends the growth at once. A window with too few readings is not judged:
the last verdict stands.

The first seconds after a process is first seen are its warm-up, and do not count.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from bpfleakd.verdicts.trend import trend

_STRETCHES = 8
# Window lengths as multiples of the shortest.
_SCALES = (1, 3, 12)
# The judged window, as many stretches before it, and the unfinished one.
_SLOTS = 2 * _STRETCHES + 1
# Per window: lowest and highest readings.
_LEVEL = 2 * _SLOTS
_QUARTER = _STRETCHES // 4
_QUARTER_SHARE = 0.1
# The probability of such an order of eight stretches without a trend: six of 28 pairs may be the wrong way.
_P_MAX = 0.01
# Fewer cannot be as unlikely as that, in whatever order.
_PRESENT_MIN = 5
_LOWEST, _HIGHEST = 0, 1
_NO_READING = -1
_EMPTY = array("q", [_NO_READING]) * _SLOTS


class GrowthOptions(Struct, frozen=True):
    """What counts as growth: at least `min_bytes` and `min_share` (0 to 1) of the process in a window.

    `window_s` is the shortest window.
    """

    window_s: float = 300.0
    min_bytes: int = 1 << 20
    min_share: float = 0.005
    warmup_s: float = 60.0

    @property
    def stretch_s(self) -> float:
        """The length of a stretch of the shortest window, which needs a reading to be judged."""
        return self.window_s / _STRETCHES


class WatchedGrowth(Struct, frozen=True):
    """Persistent growth: `bytes_per_s` is the median slope of the floor over the last `window_s`.

    `from_bytes` is the floor at its beginning.
    """

    bytes_per_s: float
    window_s: float
    from_bytes: int


class GrowthWatch:
    """The readings of one process, first seen at `began_s`: 1 KB. Times come from any monotonic clock."""

    __slots__ = ("_bytes", "_extremes", "_growths", "_numbers", "_options", "_warm_s")

    def __init__(self, began_s: float, options: GrowthOptions) -> None:
        self._options = options
        self._warm_s = began_s + options.warmup_s
        self._bytes = 0
        # Per window the lowest reading of each stretch, the newest last; then the highest. numpy is slow
        # here.
        self._extremes = array("q", [_NO_READING]) * (len(_SCALES) * _LEVEL)
        self._numbers: list[int | None] = [None] * len(_SCALES)
        self._growths: list[WatchedGrowth | None] = [None] * len(_SCALES)

    @property
    def bytes(self) -> int:
        """The last reading."""
        return self._bytes

    @property
    def growth(self) -> WatchedGrowth | None:
        """The growth in the shortest window that shows any; None without growth."""
        return next(filter(None, self._growths), None)

    def add(self, now_s: float, anonymous_bytes: int) -> None:
        """Add a reading, not earlier than the last."""
        self._bytes = anonymous_bytes
        if now_s < self._warm_s:
            return
        extremes = self._extremes
        for level, scale in enumerate(_SCALES):
            number = int(now_s // (self._options.stretch_s * scale))
            before = self._numbers[level]
            if number != before:
                self._numbers[level] = number
                self._begin_stretch(level, min(_SLOTS, number - before) if before is not None else _SLOTS)
            lowest = level * _LEVEL + _SLOTS - 1
            if extremes[lowest] == _NO_READING or anonymous_bytes < extremes[lowest]:
                extremes[lowest] = anonymous_bytes
            if anonymous_bytes > extremes[lowest + _SLOTS]:
                extremes[lowest + _SLOTS] = anonymous_bytes
            growth = self._growths[level]
            if growth is not None and anonymous_bytes < growth.from_bytes:
                self._growths[level] = None

    def _begin_stretch(self, level: int, passed: int) -> None:
        for start in (level * _LEVEL, level * _LEVEL + _SLOTS):
            end = start + _SLOTS
            self._extremes[start:end] = self._extremes[start + passed : end] + _EMPTY[:passed]
        floors = self._recent(level, _LOWEST)
        if self._growths[level] is None and _is_level(floors, self._options.min_bytes / 2):
            return
        if passed == _SLOTS or _is_judgeable(floors):
            self._growths[level] = self._persistent_growth(level, floors)

    def _recent(self, level: int, which: int) -> array[int]:
        first = level * _LEVEL + which * _SLOTS + _SLOTS - 1 - _STRETCHES
        return self._extremes[first : first + _STRETCHES]

    def _persistent_growth(self, level: int, all_floors: array[int]) -> WatchedGrowth | None:
        floors = [floor for floor in all_floors if floor != _NO_READING]
        if not floors:
            return None
        required = max(self._options.min_bytes, self._options.min_share * floors[0])
        # Nearly all processes end here, nearly always: the rest costs a hundred times as much.
        if floors[-1] - floors[0] < required / 2:
            return None
        all_ceilings = self._recent(level, _HIGHEST)
        if not (_rises_all_the_way(all_floors, min) and _rises_all_the_way(all_ceilings, max)):
            return None
        window_s = self._options.window_s * _SCALES[level]
        times_s = np.array([place for place, floor in enumerate(all_floors) if floor != _NO_READING])
        times_s = times_s * (window_s / _STRETCHES)
        ceilings = [ceiling for ceiling in all_ceilings if ceiling != _NO_READING]
        floor = trend(times_s, floors)
        if (
            floor.p_increase > _P_MAX
            or trend(times_s, ceilings).p_increase > _P_MAX
            or floor.slope_per_s * window_s < required
            or floors[-1] - self._highest_before(level) < required / 2
        ):
            return None
        return WatchedGrowth(floor.slope_per_s, window_s, floors[0])

    def _highest_before(self, level: int) -> int:
        """The peak before the window, as far back as the longest window."""
        highest = _NO_READING
        for longer in range(level, len(_SCALES)):
            # In stretches of the longer window, rounded up.
            judged = -(-_STRETCHES * _SCALES[level] // _SCALES[longer])
            first = longer * _LEVEL + _SLOTS
            highest = max(highest, *self._extremes[first : first + _SLOTS - 1 - judged])
        return highest


def _is_level(floors: Sequence[int], rise_min: float) -> bool:
    """Whether there is no such rise since the first or second stretch, which rules out growth."""
    first = floors[0] if floors[0] != _NO_READING else floors[1]
    return first != _NO_READING and max(floors) - first < rise_min


def _is_judgeable(floors: Sequence[int]) -> bool:
    """Whether these stretches have enough readings; otherwise the last verdict stands."""
    missing = floors.count(_NO_READING)
    if missing == 0:
        return True
    return _STRETCHES - missing >= _PRESENT_MIN and all(
        max(quarter) != _NO_READING for quarter in _quarters(floors)
    )


def _rises_all_the_way(figures: Sequence[int], extreme: Callable[[Iterable[int]], int]) -> bool:
    """Whether each quarter's extreme exceeds the previous one's, by a tenth of the whole rise."""
    extremes = [
        extreme(figure for figure in quarter if figure != _NO_READING) for quarter in _quarters(figures)
    ]
    least = _QUARTER_SHARE * (extremes[-1] - extremes[0])
    return least > 0 and all(late - early >= least for early, late in pairwise(extremes))


def _quarters(figures: Sequence[int]) -> list[Sequence[int]]:
    return [figures[first : first + _QUARTER] for first in range(0, _STRETCHES, _QUARTER)]
