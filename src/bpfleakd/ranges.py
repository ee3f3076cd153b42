"""Ranges of addresses: (start, end)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]


def outside(ranges: Iterable[Range], others: Iterable[Range]) -> Iterator[Range]:
    """Yield the parts of ranges outside of the others. Both are in order; the ranges are disjoint."""
    remaining = iter(others)
    other = next(remaining, None)
    for start, end in ranges:
        at = start
        while other is not None and other[0] < end:
            if at < other[0]:
                yield at, other[0]
            at = max(at, other[1])
            if other[1] > end:
                break
            other = next(remaining, None)
        if at < end:
            yield at, end
