"""How curves rise over a window: steadily, ever more slowly, ever faster, no longer; and their noise."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from bpfleakd.verdicts.envelope import CELLS, Matrix, Rise, Row, grid_of, rise_of
from bpfleakd.verdicts.site_histories import Flags
from bpfleakd.verdicts.survival import NORMAL_95

# Below this probability a curve no longer counts as rising as before.
LOG_ALPHA = np.log(0.02)
# A rise began too late if the first third has less than half of its due share with less than this
# probability; it is over if the same applies to the last third.
THIN_THIRD = 1 / 6
_LOG_ALPHA_THIRD = np.log(0.1)
# A rise with a longer pause is two bursts, however few its steps. (From 0.7 on, its median slope is zero.)
_LONGEST_PAUSE = 0.6
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
LOAD_MIN, _LOAD_FALL_MAX = 200, np.log(4)
_STILL_FILLING, _FAR = 0.5, 2.0
# At the end of such a curve, the gain is at most this share of what is held.
_NEARLY_FULL = 0.05
# Positions of the cells, relative to their middle.
_PLACES = np.arange(CELLS) - (CELLS - 1) / 2
_SQUARES = float((_PLACES**2).sum())
_EQUAL = grid_of(np.zeros(1), np.ones(1))
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
    return even & ~_is_interrupted(rise)


def has_stopped(rise: Rise) -> Flags:
    stopped: Flags = (rise.log_p_silence < LOG_ALPHA) | (rise.silence > 0.5)
    return stopped


def _is_interrupted(rise: Rise) -> Flags:
    """Whether a curve rises in two bursts: what it does twice is not what it does all the time."""
    interrupted: Flags = (rise.log_p_pause < LOG_ALPHA) | (rise.pause > _LONGEST_PAUSE)
    return interrupted


def slows_down(rise: Rise) -> Flags:
    return (rise.last_third < _SLOWER * rise.first_third) & (rise.z_rate < -NORMAL_95)


class Filling(Struct, frozen=True):
    """How curves rise less and less, like those of filling caches: one figure per site, 0.0 for other curves.

    `falls_per_s` is the least fall of the logarithm of the rate, per second, over this time and longer ones;
    `still_fills` says whether the curve fills over this time. `fall` is the fall over it, and `load_fall`
    that of the rate per block that the process allocates.
    """

    falls_per_s: Row
    still_fills: Flags
    fall: Row
    load_fall: Row


def filling(
    grid: Matrix, values: Matrix, blocks: Row, falls_per_s: Row, by_load: Matrix | None = None
) -> Filling:
    """Whether curves rise over a grid like those of filling caches.

    `falls_per_s` is that of longer times. `blocks` are the recorded blocks of the gain. `by_load` are the
    values at equal shares of what the process allocates over the grid (None: it is unknown): on a busy
    machine all of the process stands still now and then, which hides that one curve becomes ever slower.
    """
    fall, error, deviate = _rate_fall(grid, values)
    elapsed_s = np.maximum(grid[-1] - grid[0], 1e-9)
    is_filling = _falls(values, fall, deviate)
    of_chance = np.sqrt(6 / np.maximum(blocks, 1.0)) * (blocks > 0)
    expected = _STILL_FILLING * falls_per_s * elapsed_s
    goes_on = fall + _FAR * np.maximum(error, of_chance) > expected
    goes_on |= gain(values) < _NEARLY_FULL * values[-1]
    here, load_fall = fall, np.zeros_like(fall)
    if by_load is not None:
        load_fall, load_error, load_deviate = _rate_fall(_EQUAL, by_load)
        goes_on |= load_fall + _FAR * np.maximum(load_error, of_chance) > expected
        # While a load rises, an even leak falls behind it: then time shows that it is even.
        falls = _falls(by_load, load_fall, load_deviate) & (fall + error > load_fall / 2)
        here = np.where(is_filling, fall, load_fall)
        is_filling |= falls
        load_fall = np.where(falls & (fall > load_fall / 2), load_fall, 0.0)
    still_fills = is_filling | ((falls_per_s > 0) & goes_on)
    # In a short time, the fall may look large by chance.
    here = here / elapsed_s
    least = np.where(falls_per_s > 0, np.minimum(falls_per_s, here), here)
    return Filling(
        np.where(is_filling, least, falls_per_s), still_fills, np.where(is_filling, fall, 0.0), load_fall
    )


def _falls(values: Matrix, fall: Row, deviate: Row) -> Flags:
    """Whether rates fall like those of a filling cache.

    With few blocks or bursts, thirds of the time differ by chance, which a curve with few points hides.
    """
    by_more = fall > np.maximum(-np.log(_FILLING), _FAR * np.sqrt(6 / _events(values)))
    falls: Flags = by_more & (deviate < _FILLING_T)
    return falls


def falls_much(found: Filling, grid: Matrix, others: Matrix) -> Flags:
    """Which rates fall so much that the sites are caches, though they leaked before.

    `others` are the blocks that the process' other sites have allocated: what these fall by is its load's.
    """
    load_fall, _error, _deviate = _rate_fall(grid, others)
    number = others[-1] - others[0]
    of_load = np.where(number >= LOAD_MIN, load_fall - _FAR * np.sqrt(6 / np.maximum(number, 1.0)), 0.0)
    fall = np.maximum(found.fall - np.clip(of_load, 0.0, _LOAD_FALL_MAX), found.load_fall)
    much: Flags = fall > -np.log(_MUCH_LESS)
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
