"""The bounded history of one figure that changes in steps.

Rules:
* A point gives the figure from its time on; between two points it does not change.
* Points are in order of time. The first, where the figure began, is never dropped.
* There are at most `MAX_POINTS`. When the history is full, every second point between the first and the
  newest `FULL_POINTS` is dropped: older history is coarser.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["FULL_POINTS", "MAX_POINTS", "History"]

MAX_POINTS = 128
FULL_POINTS = 64


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

    def append(self, time_ns: int, value: int) -> None:
        """Add a point if the value has changed. Raises ValueError if time goes back."""
        if time_ns < self._times_ns[-1]:
            raise ValueError(f"time goes back from {self._times_ns[-1]} to {time_ns}")
        if value == self._values[-1]:
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
        older = slice(1, MAX_POINTS - FULL_POINTS, 2)
        del self._times_ns[older]
        del self._values[older]
