"""Whether growth slows down or has ended, for curves with few points, such as a heap after its collections.

A cache fills ever more slowly, since it has more and more of what is wanted, and then stops; a leak
continues. A program with a leak fills caches too, mostly while it starts: so the later half of the time must
slow down as well.

Method: a parabola by least squares. It bends down if Student's t of its square term says so with 99 %
certainty; the amount by which growth has slowed down is the slope at its end as a share of that at its
beginning.
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from bpfleakd.verdicts.trend import trend

_Row = NDArray[np.float64]

# Growth slows down if the slope falls below the first share with 99 % certainty, and in the later half below
# the second share, with less certainty.
_SLOWS, _STILL_SLOWS, _STILL_SLOWS_T = 0.75, 0.9, -1.0
# Student's t that 1 % of straight lines stay below, for one degree of freedom and more.
_T_99 = (-31.8, -6.96, -4.54, -3.75, -3.36, -3.14, -3.00, -2.90, -2.82, -2.76)
_T_99_MORE = -2.7
_POINTS_MIN = 4
# Growth has ended if the later half gains less than this share of the first half's gain, and rises so little
# that it may be chance.
_ENDED_SHARE, _ENDED_P = 0.25, 0.1


class Course(Enum):
    """How growth continues."""

    EVEN = "even"
    SLOWS_DOWN = "slows down"
    ENDED = "ended"


def course_of(whole: tuple[_Row, _Row], later: tuple[_Row, _Row]) -> Course:
    """The course of a growing figure, from its times in seconds and its values.

    `later` has those of the later half, as many as there are. Too few points count as steady growth.
    """
    if _has_ended(whole, later):
        return Course.ENDED
    if not _slows(*whole, _SLOWS, None):
        return Course.EVEN
    # Three points alone prove nothing.
    if len(later[0]) >= _POINTS_MIN and not _slows(*later, _STILL_SLOWS, _STILL_SLOWS_T):
        return Course.EVEN
    return Course.SLOWS_DOWN


def _has_ended(whole: tuple[_Row, _Row], later: tuple[_Row, _Row]) -> bool:
    """Whether the later half no longer grows."""
    times_s, values = later
    if len(times_s) < _POINTS_MIN:
        return False
    found = trend(times_s, values)
    gained = found.slope_per_s * float(times_s[-1] - times_s[0])
    before = float(values[0] - whole[1][0])
    return gained < _ENDED_SHARE * before and found.p_increase > _ENDED_P


def _slows(times_s: _Row, values: _Row, share: float, t_max: float | None) -> bool:
    freedom = len(times_s) - 3
    if freedom < 1:
        return False
    middle_s, half_s = (times_s[-1] + times_s[0]) / 2, (times_s[-1] - times_s[0]) / 2
    x = (times_s - middle_s) / half_s
    powers = np.stack([np.ones_like(x), x, x * x], axis=1)
    inverse = np.linalg.pinv(powers.T @ powers)
    _level, slope, bend = inverse @ (powers.T @ values)
    rest = values - powers @ (inverse @ (powers.T @ values))
    error = math.sqrt(max(float(rest @ rest), 0.0) / freedom * float(inverse[2, 2]))
    first, last = float(slope - 2 * bend), float(slope + 2 * bend)
    if t_max is None:
        t_max = _T_99[freedom - 1] if freedom <= len(_T_99) else _T_99_MORE
    return first > 0 and last < share * first and float(bend) < t_max * error
