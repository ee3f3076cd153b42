"""Disjoint intervals of addresses, in order, each with a value.

Rules:
  - Intervals are sorted, disjoint and not empty.
  - Two touching intervals have different values, compared by identity; those with the same value are joined.
  - Every search is a bisection. The remaining cost is moving list items behind an insertion.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

# Start, end (behind the last byte) and value.
Piece = tuple[int, int, T]


class Intervals(Generic[T]):
    """Pieces (start, end, value). The initial `pieces` must be sorted and disjoint."""

    __slots__ = ("_ends", "_starts", "_values")

    def __init__(self, pieces: Iterable[Piece[T]] = ()) -> None:
        joined = _joined(pieces)
        # Arrays, not lists: an address takes 8 bytes instead of 40, and removing it leaves no hole in the
        # heap.
        self._starts = array("Q", [start for start, _end, _value in joined])
        self._ends = array("Q", [end for _start, end, _value in joined])
        self._values = [value for _start, _end, value in joined]

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Piece[T]]:
        return zip(self._starts, self._ends, self._values, strict=True)

    def at(self, address: int) -> T | None:
        """The value of the interval that contains an address."""
        index = bisect_right(self._starts, address) - 1
        return self._values[index] if index >= 0 and address < self._ends[index] else None

    def overlapping(self, start: int, end: int) -> list[Piece[T]]:
        """The pieces between two addresses, cut off at both."""
        if start >= end:
            return []
        first, last = self._span(start, end)
        columns = self._starts[first:last], self._ends[first:last], self._values[first:last]
        pieces = list(zip(*columns, strict=True))
        if pieces and pieces[0][0] < start:
            pieces[0] = (start, *pieces[0][1:])
        if pieces and pieces[-1][1] > end:
            pieces[-1] = (pieces[-1][0], end, pieces[-1][2])
        return pieces

    def replace(self, start: int, end: int, pieces: Sequence[Piece[T]]) -> None:
        """Replace everything from `start` to `end` by `pieces` (sorted, disjoint, within that range)."""
        if start >= end:
            return
        first, last = self._span(start, end)
        # Includes touching neighbours, to join those with the same value.
        if first > 0 and self._ends[first - 1] == start:
            first -= 1
        if last < len(self._starts) and self._starts[last] == end:
            last += 1
        new = list(pieces)
        if first < last:
            if self._starts[first] < start:
                new.insert(0, (self._starts[first], min(self._ends[first], start), self._values[first]))
            if self._ends[last - 1] > end:
                new.append((max(self._starts[last - 1], end), self._ends[last - 1], self._values[last - 1]))
        new = _joined(new)
        self._starts[first:last] = array("Q", [piece[0] for piece in new])
        self._ends[first:last] = array("Q", [piece[1] for piece in new])
        self._values[first:last] = [piece[2] for piece in new]

    def _span(self, start: int, end: int) -> tuple[int, int]:
        """The indices of the overlapping intervals: the first, and one behind the last."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._ends[first] <= start:
            first += 1
        return first, bisect_left(self._starts, end, first)


def without(pieces: Iterable[Piece[T]], start: int, end: int) -> list[Piece[T]]:
    """The parts of `pieces` outside of two addresses."""
    left = []
    for piece_start, piece_end, value in pieces:
        if piece_start < min(piece_end, start):
            left.append((piece_start, min(piece_end, start), value))
        if max(piece_start, end) < piece_end:
            left.append((max(piece_start, end), piece_end, value))
    return left


def _joined(pieces: Iterable[Piece[T]]) -> list[Piece[T]]:
    joined: list[Piece[T]] = []
    for piece in pieces:
        if joined and joined[-1][1] == piece[0] and joined[-1][2] is piece[2]:
            joined[-1] = (joined[-1][0], piece[1], piece[2])
        else:
            joined.append(piece)
    return joined
