"""A course of figures over time as one line of blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"


def sparkline(
    ends_s: Sequence[float], values: Sequence[float], width: int, *, ascii_only: bool = False
) -> str:
    """Return at most `width` characters from 0 (the lowest block) to the largest value, evenly over time.

    `values` are of bins of time that end at `ends_s` and may differ in length; "" if there is none.
    """
    if not values or width < 1 or ends_s[-1] <= 0:
        return ""
    width = min(width, 4 * len(values))
    levels = _ASCII if ascii_only else _BLOCKS
    highest = max(values)
    if highest <= 0:
        return levels[0] * width
    times = (ends_s[-1] * (column + 0.5) / width for column in range(width))
    picked = (values[min(bisect_left(ends_s, time_s), len(values) - 1)] for time_s in times)
    return "".join(levels[round(max(0.0, value) / highest * (len(levels) - 1))] for value in picked)
