"""A robust trend: how fast a figure grows, between which bounds, and how sure it is that it does.

The slope is the median of the slopes between all pairs of points (Theil 1950, Sen 1968): up to 29 % of the
points may be arbitrarily wrong. Its interval is Sen's, from the variance of Kendall's score. The test for an
increase is that of Mann (1945) and Kendall (1975), which uses the order of the values and not their
distances, so neither a single jump nor the shape of the growth matters. Points may be irregular in time; ties
in values (and times) are corrected for.

Assumption: without a trend every order of the values is equally likely, that is, the points are independent.
Readings of memory are not, since allocated memory stays for a while: correlated points make the interval too
narrow and the probability too small. Thin them out, or reduce them to figures of whole stretches (minima),
before you pass them to `trend`.

Sources:
  H. B. Mann, Nonparametric tests against trend, Econometrica 13 (1945).
  H. Theil, A rank-invariant method of linear and polynomial regression analysis, Proc. Kon. Ned. Akad.
    Wetensch. 53 (1950).
  P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 63 (1968).
  M. G. Kendall, Rank correlation methods, 4th edition (1975): tau-b, exact distribution, variance with ties.
  R. M. Hirsch, J. R. Slack, R. A. Smith, Techniques of trend analysis for monthly water quality data, Water
    Resources Research 18 (1982): the two together, for series like these.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

# The 97.5 % point of the normal distribution: 95 % lie between minus and plus this.
_NORMAL_975 = 1.959963984540054
# Up to this many points the distribution of the score is exact; beyond it, the normal distribution is as good
# (Kendall).
_EXACT_MAX = 30


class Trend(Struct, frozen=True):
    """The trend of a figure, in its unit per second.

    `slope_low` and `slope_high` bound the slope with 95 % confidence; they are infinite where the points are
    too few for that (fewer than six). `tau`, from -1 to 1, is how consistently the figure rises (Kendall's
    tau-b). `p_increase` is the p-value of the test for an increase: how likely points without a trend would
    rise so consistently, or more. Near 0 it grows, around 0.5 it does not, near 1 it shrinks.
    """

    slope_per_s: float
    slope_low: float
    slope_high: float
    tau: float
    p_increase: float


def trend(times_s: ArrayLike, values: ArrayLike) -> Trend:
    """The trend of `values` at `times_s`: two equally long sequences, times in any order.

    Takes time and memory in the square of the number of points; meant for up to some hundreds. Raises
    ValueError for sequences of different lengths, for values that are not finite, and for fewer than two
    different times.
    """
    times, figures = _checked(times_s, values)
    n = len(times)
    later, earlier = np.tril_indices(n, -1)
    elapsed = times[later] - times[earlier]
    change = figures[later] - figures[earlier]
    between = elapsed > 0
    slopes = np.sort(change[between] / elapsed[between])
    score = int(np.sign(change[between]).sum())
    time_ties, value_ties = _ties(times), _ties(figures)
    deviation = math.sqrt(_variance(n, time_ties, value_ties))
    low, high = _interval(slopes, deviation)
    return Trend(
        slope_per_s=float(np.median(slopes)),
        slope_low=low,
        slope_high=high,
        tau=_tau(score, n, time_ties, value_ties),
        p_increase=_p_increase(score, n, deviation, is_exact=not len(time_ties) and not len(value_ties)),
    )


def _checked(times_s: ArrayLike, values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    times = np.asarray(times_s, np.float64)
    figures = np.asarray(values, np.float64)
    if times.ndim != 1 or times.shape != figures.shape:
        raise ValueError(f"times and values of shapes {times.shape} and {figures.shape}")
    if not (np.isfinite(times).all() and np.isfinite(figures).all()):
        raise ValueError("a time or value is not finite")
    order = np.argsort(times, kind="stable")
    times, figures = times[order], figures[order]
    if len(times) < 2 or times[0] == times[-1]:
        raise ValueError("a trend needs two different times")
    return times, figures


def _ties(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sizes of the groups of equal numbers, without those of one."""
    sizes = np.unique(numbers, return_counts=True)[1]
    return sizes[sizes > 1].astype(np.float64)


def _variance(n: int, time_ties: NDArray[np.float64], value_ties: NDArray[np.float64]) -> float:
    """The variance of Kendall's score of n points in random order (Kendall 1975, chapter 5)."""

    def pairs(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        return sizes * (sizes - 1)

    def spread(sizes: NDArray[np.float64]) -> float:
        return float((pairs(sizes) * (2 * sizes + 5)).sum())

    variance = (spread(np.array([n], np.float64)) - spread(time_ties) - spread(value_ties)) / 18
    variance += float(pairs(time_ties).sum() * pairs(value_ties).sum()) / (2 * n * (n - 1))
    if n > 2:
        triples = (pairs(time_ties) * (time_ties - 2)).sum() * (pairs(value_ties) * (value_ties - 2)).sum()
        variance += float(triples) / (9 * n * (n - 1) * (n - 2))
    return max(0.0, variance)


def _interval(slopes: NDArray[np.float64], deviation: float) -> tuple[float, float]:
    """The slopes `deviation` ranks below and above the median, rounded outwards (Sen 1968)."""
    rank = math.floor((len(slopes) - _NORMAL_975 * deviation) / 2)
    if rank < 1:
        return -math.inf, math.inf
    return float(slopes[rank - 1]), float(slopes[-rank])


def _tau(score: int, n: int, time_ties: NDArray[np.float64], value_ties: NDArray[np.float64]) -> float:
    all_pairs = n * (n - 1) / 2
    untied = [all_pairs - float((ties * (ties - 1)).sum()) / 2 for ties in (time_ties, value_ties)]
    return score / math.sqrt(untied[0] * untied[1]) if untied[1] else 0.0


def _p_increase(score: int, n: int, deviation: float, *, is_exact: bool) -> float:
    if is_exact and n <= _EXACT_MAX:
        # Scores go in steps of two: this is, from n(n-1)/2 on, the probability of each number of falling
        # pairs.
        falling = (n * (n - 1) // 2 - score) // 2
        return float(_falling_pairs(n)[: falling + 1].sum())
    if deviation == 0:
        return 0.5
    # The continuity correction is half a step: a step is two without ties, and not less than one with them.
    return 0.5 * math.erfc((score - 1) / (deviation * math.sqrt(2)))


@lru_cache(maxsize=_EXACT_MAX)
def _falling_pairs(n: int) -> NDArray[np.float64]:
    """The probability of each number of falling pairs in a random order of n different values."""
    probabilities = np.ones(1)
    for size in range(2, n + 1):
        probabilities = np.convolve(probabilities, np.full(size, 1 / size))
    return probabilities
