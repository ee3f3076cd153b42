"""The bounded history of one figure that changes in steps.

Rules:
* A point gives the figure from its time on; between two points it did not change.
* Points are in order of time. The first, where the figure began, is never dropped.
* There are at most `MAX_POINTS`. When the history is full, some of those before the newest `FULL_POINTS` are
  dropped: older history is coarser. The time between two older points is a part of their age.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

MAX_POINTS = 128
FULL_POINTS = 64
# So many of the older points stay at most when some have to go: it happens every so many points.
_OLDER_POINTS = 40
# The time between two older points, in their age: the first that is coarse enough.
_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)


class History:
    """Points of (time in CLOCK_MONOTONIC ns, value)."""

    __slots__ = ("_times_ns", "_values")

    def __init__(self, time_ns: int, value: int) -> None:
        self._times_ns = array("q", [time_ns])
        self._values = array("q", [value])

    @classmethod
    def of(cls, points: Sequence[tuple[int, int]]) -> History:
        """A history of these points. Raises ValueError if there are none, or if they are out of order."""
        if not points:
            raise ValueError("a history without a beginning")
        history = cls(*points[0])
        for time_ns, value in points[1:]:
            history.append(time_ns, value)
        return history

    def __len__(self) -> int:
        return len(self._times_ns)

    @property
    def points(self) -> list[tuple[int, int]]:
        """All points, oldest first."""
        return list(zip(self._times_ns, self._values, strict=True))

    @property
    def first_ns(self) -> int:
        """When the figure began."""
        return self._times_ns[0]

    @property
    def last(self) -> int:
        """The current value."""
        return self._values[-1]

    def append(self, time_ns: int, value: int, resolution_ns: int = 0) -> None:
        """Add a point if the value has changed. Raises ValueError if time goes back.

        It replaces the newest point if both are within `resolution_ns` of the one before them.
        """
        if time_ns < self._times_ns[-1]:
            raise ValueError(f"time goes back from {self._times_ns[-1]} to {time_ns}")
        if value == self._values[-1]:
            return
        if len(self._times_ns) > 1 and time_ns - self._times_ns[-2] <= resolution_ns:
            self._times_ns[-1], self._values[-1] = time_ns, value
            return
        if len(self._times_ns) == MAX_POINTS:
            self._thin()
        self._times_ns.append(time_ns)
        self._values.append(value)

    def at(self, time_ns: int) -> int:
        """The value at a time; 0 before the first point."""
        index = bisect_right(self._times_ns, time_ns)
        return self._values[index - 1] if index else 0

    def _thin(self) -> None:
        older = self._times_ns[: MAX_POINTS - FULL_POINTS]
        now_ns = self._times_ns[-1]
        kept: list[int] = []
        for share in _SHARES:
            kept = _apart(older, now_ns, share)
            if len(kept) <= _OLDER_POINTS:
                break
        # Only where no time passes, or almost none, are there still more.
        kept = [0, *kept[1:][-_OLDER_POINTS:]]
        for column in (self._times_ns, self._values):
            column[: len(older)] = array("q", [column[index] for index in kept])


def _apart(times_ns: Sequence[int], now_ns: int, share: float) -> list[int]:
    """The indices of the first time and of those that are `share` of their age apart, in order."""
    kept, newer_ns = [], now_ns
    for index in range(len(times_ns) - 1, 0, -1):
        if newer_ns - times_ns[index] >= share * (now_ns - times_ns[index]):
            kept.append(index)
            newer_ns = times_ns[index]
    return [0, *reversed(kept)]
