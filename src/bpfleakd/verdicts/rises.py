"""How curves rise over a window: steadily, ever more slowly, ever faster, no longer; and their noise."""

from __future__ import annotations

import numpy as np

from bpfleakd.verdicts.envelope import CELLS, Matrix, Rise, Row, rise_of
from bpfleakd.verdicts.site_histories import Flags
from bpfleakd.verdicts.survival import NORMAL_95

# Below this probability a curve no longer counts as rising as before.
LOG_ALPHA = np.log(0.02)
# A rise began too late if the first third has less than half of its due share with less than this
# probability; it is over if the same applies to the last third.
THIN_THIRD = 1 / 6
_LOG_ALPHA_THIRD = np.log(0.1)
# A rise slows down if its last third has less than half of its first, with 95 % confidence.
_SLOWER = 0.5
# A cache fills ever more slowly, since it has more and more of what is wanted. Its curve is smooth, so the
# fall of its rate is certain long before it is large: the last third has so much less than the first, by so
# many standard errors of the curve's own scatter, and by more than that many steps differ by chance. A part
# of such a curve looks straight if it is short enough. So a curve counts as straight only if the logarithm of
# its rate falls by less than this share of what the whole curve predicts, by so many standard errors. (A
# cache that receives the most wanted keys first fills as a power of time: there the fall in the last half,
# quarter or eighth is 0.8 to 0.5 of what an even fall would be.)
_FILLING, _FILLING_T = 0.9, -4.0
# What was found to leak must slow down by more to pass for a cache: the load of a program varies, too.
_MUCH_LESS = 0.75
# So few allocations show no load. It explains a fall to a quarter at most: a cache that allocates nothing but
# what it has not yet must not stay a leak for ever.
_LOAD_MIN, _LOAD_FALL_MAX = 200, np.log(4)
_STILL_FILLING, _FAR = 0.5, 2.0
# At the end of such a curve, the gain is at most this share of what is held.
_NEARLY_FULL = 0.05
# Positions of the cells, relative to their middle.
_PLACES = np.arange(CELLS) - (CELLS - 1) / 2
_SQUARES = float((_PLACES**2).sum())
# A smaller rise in both may be any list of limited length, such as a server's log of its slowest requests.
_LEAK_BYTES_MIN = 32 << 10
_LEAK_BLOCKS_MIN = 512.0


def gain(values: Matrix) -> Row:
    """What a curve that never falls gains over a grid."""
    gained: Row = np.maximum(np.diff(values, axis=0), 0.0).sum(axis=0)
    return gained


def is_more_than_a_list(gained_bytes: Row, gained_count: Row) -> Flags:
    return (gained_bytes >= _LEAK_BYTES_MIN) | (gained_count >= _LEAK_BLOCKS_MIN)


def is_even(rise: Rise) -> Flags:
    """Whether a curve rises from the beginning of its window to the end, and does not slow down."""
    is_late = (rise.first_third < THIN_THIRD) & (rise.log_p_first_third < _LOG_ALPHA_THIRD)
    is_over = (rise.last_third < THIN_THIRD) & (rise.log_p_last_third < _LOG_ALPHA_THIRD)
    even: Flags = (rise.gain > 0) & ~has_stopped(rise) & ~slows_down(rise) & ~is_late & ~is_over
    return even


def has_stopped(rise: Rise) -> Flags:
    stopped: Flags = (rise.log_p_silence < LOG_ALPHA) | (rise.silence > 0.5)
    return stopped


def slows_down(rise: Rise) -> Flags:
    return (rise.last_third < _SLOWER * rise.first_third) & (rise.z_rate < -NORMAL_95)


def filling(grid: Matrix, values: Matrix, blocks: Row, falls_per_s: Row) -> tuple[Row, Flags, Row]:
    """How fast the rates of filling caches' curves fall, which of the curves still fill over this grid, and
    the fall over this grid (0.0 for other curves).

    `falls_per_s` is the fall of the logarithm of the rate over a longer time, 0.0 for other curves; the
    result is the least fall so far. `blocks` are the recorded blocks of the gain.
    """
    fall, error, deviate = _rate_fall(grid, values)
    elapsed_s = np.maximum(grid[-1] - grid[0], 1e-9)
    # With few blocks or bursts, thirds of the time differ by chance, which a curve with few points hides.
    is_filling = fall > np.maximum(-np.log(_FILLING), _FAR * np.sqrt(6 / _events(values)))
    is_filling &= deviate < _FILLING_T
    error = np.maximum(error, np.sqrt(6 / np.maximum(blocks, 1.0)) * (blocks > 0))
    goes_on = fall + _FAR * error > _STILL_FILLING * falls_per_s * elapsed_s
    goes_on |= gain(values) < _NEARLY_FULL * values[-1]
    still_fills = is_filling | ((falls_per_s > 0) & goes_on)
    # In a short time, the fall may look large by chance.
    here = fall / elapsed_s
    least = np.where(falls_per_s > 0, np.minimum(falls_per_s, here), here)
    return np.where(is_filling, least, falls_per_s), still_fills, np.where(is_filling, fall, 0.0)


def falls_much(fall: Row, grid: Matrix, others: Matrix) -> Flags:
    """Which rates fall so much that the sites are caches, though they leaked before.

    `others` are the blocks that the process' other sites have allocated: what these fall by is its load's.
    """
    load_fall, _error, _deviate = _rate_fall(grid, others)
    number = others[-1] - others[0]
    of_load = np.where(number >= _LOAD_MIN, load_fall - _FAR * np.sqrt(6 / np.maximum(number, 1.0)), 0.0)
    much: Flags = fall - np.clip(of_load, 0.0, _LOAD_FALL_MAX) > -np.log(_MUCH_LESS)
    return much


def _events(values: Matrix) -> Row:
    """How many equal steps at random times make a curve as uneven as this one.

    n events in c cells have a participation ratio of c n / (n + c) on average, since the number of events in
    a cell is Poisson's.
    """
    steps = np.minimum(rise_of(values).steps, CELLS * (1 - 1e-6))
    return np.maximum(steps / (1 - steps / CELLS), 1.0)


def _rate_fall(grid: Matrix, values: Matrix) -> tuple[Row, Row, Row]:
    """The logarithm of the first third's rate over the last third's, its standard error, and Student's t.

    t is that of a line through all rates. The scatter around the line is the curve's own: a curve of a few
    large steps has no certain trend.
    """
    rates = np.maximum(np.diff(values, axis=0), 0.0) / np.maximum(np.diff(grid, axis=0), 1e-9)
    thirds = rates.reshape(3, CELLS // 3, -1).sum(axis=1)
    slope = _PLACES @ rates / _SQUARES
    rest = np.einsum("ij,ij->j", rates, rates) - thirds.sum(axis=0) ** 2 / CELLS - slope**2 * _SQUARES
    error = np.sqrt(np.maximum(rest, 0.0) / (CELLS - 2) / _SQUARES)
    first, last = np.maximum(thirds[0], 1e-12), np.maximum(thirds[-1], 1e-12)
    # The middles of the first and last third are two thirds of the cells apart.
    error_of_fall = error * (2 / 3 * CELLS) * (CELLS / 3) / np.maximum(thirds.mean(axis=0), 1e-12)
    return np.log(first / last), error_of_fall, slope / np.maximum(error, 1e-12)


def speeds_up(rise: Rise) -> Flags:
    return (rise.first_third < _SLOWER * rise.last_third) & (rise.z_rate > NORMAL_95)


def noise(low: Matrix) -> Row:
    """The standard deviation of the fluctuation, from the changes between bins."""
    # For normal noise the median of the absolute differences is 0.954 standard deviations.
    return np.median(np.abs(np.diff(low, axis=0)), axis=0) if len(low) > 1 else np.zeros(low.shape[1])


def theil_sen(grid: Matrix, values: Matrix) -> Row:
    """The median of the slopes between every second point of the grid (see `trend`)."""
    times_s, figures = grid[::2], values[::2]
    later, earlier = np.tril_indices(CELLS // 2 + 1, -1)
    elapsed = np.maximum(times_s[later] - times_s[earlier], 1e-9)
    return np.median((figures[later] - figures[earlier]) / elapsed, axis=0)
