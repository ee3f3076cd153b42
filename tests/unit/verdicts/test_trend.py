"""The robust trend, against tables, enumeration and simulation."""

from __future__ import annotations

import math
from itertools import permutations
from statistics import median, pvariance

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.verdicts.trend import trend


def test_a_straight_line() -> None:
    """A line is found exactly, at irregular times, with an interval of no width."""
    times = [0, 1, 1.5, 4, 8, 9, 30, 31]
    found = trend(times, [23 * t + 5 for t in times])
    assert (found.slope_per_s, found.slope_low, found.slope_high) == (23, 23, 23)
    assert found.tau == 1
    assert found.p_increase == pytest.approx(1 / math.factorial(8))


def test_a_constant() -> None:
    """A constant has no slope, and no test says that it grows or shrinks."""
    found = trend(range(20), [7] * 20)
    assert (found.slope_per_s, found.slope_low, found.slope_high) == (0, 0, 0)
    assert (found.tau, found.p_increase) == (0, 0.5)


def test_a_quarter_of_the_points_may_be_wrong() -> None:
    """Outliers, however far out, do not move the slope."""
    values = [10.0 * t for t in range(40)]
    values[3::4] = [1e9, -1e9] * 5
    assert trend(range(40), values).slope_per_s == pytest.approx(10, rel=0.01)


# Kendall, Rank correlation methods, table 1; Hollander and Wolfe, table A.30: number of points, score, p.
@pytest.mark.parametrize(
    ("n", "score", "p"),
    [
        (4, 6, 0.042),
        (4, 4, 0.167),
        (5, 10, 0.0083),
        (5, 8, 0.042),
        (8, 16, 0.031),
        (9, 20, 0.022),
        (10, 21, 0.036),
    ],
)
def test_the_published_table(n: int, score: int, p: float) -> None:
    """Small numbers of points have the exact probabilities of the tables."""
    values = _with_score(n, score)
    assert trend(range(n), values).p_increase == pytest.approx(p, abs=0.0006)


def test_the_variance_with_ties_is_that_of_all_orders() -> None:
    """With ties in values and times, p is the normal one of the score's variance over all orders."""
    times, values = [0, 1, 1, 2, 3, 4, 5], [1, 1, 2, 2, 2, 5, 4]
    scores = [_score(times, order) for order in permutations(values)]
    expected = 0.5 * math.erfc((_score(times, values) - 1) / math.sqrt(2 * pvariance(scores)))
    assert trend(times, values).p_increase == pytest.approx(expected)


def test_sens_interval_by_hand() -> None:
    """Ten points: the variance is 125, so the interval reaches from the 11th of 45 slopes to the 35th."""
    values = [3, 1, 4, 1.5, 9, 2, 6, 5, 3.5, 8]
    slopes = sorted((values[j] - values[i]) / (j - i) for j in range(10) for i in range(j))
    found = trend(range(10), values)
    # (45 - 1.96 sqrt(125)) / 2 = 11.54
    assert (found.slope_low, found.slope_high) == (slopes[10], slopes[34])
    assert found.slope_per_s == median(slopes)


def test_too_few_points_for_an_interval() -> None:
    """Five points cannot bound a slope with 95 % confidence; six can."""
    five, six = trend(range(5), range(5)), trend(range(6), range(6))
    assert (five.slope_low, five.slope_high) == (-math.inf, math.inf)
    assert (six.slope_low, six.slope_high) == (1, 1)


def test_the_interval_holds_the_slope_as_often_as_it_says() -> None:
    """Over 400 series with heavy-tailed noise, about 95 % of the intervals hold the true slope."""
    random = np.random.default_rng(23)
    held = 0
    for _ in range(400):
        times = np.sort(random.uniform(0, 60, 40))
        found = trend(times, 5 * times + random.standard_t(2, 40) * 20)
        held += found.slope_low <= 5 <= found.slope_high
    assert 365 <= held <= 395


def test_false_alarms_are_as_rare_as_they_say() -> None:
    """Independent points without a trend are below p = 0.05 in about a twentieth of the series."""
    random = np.random.default_rng(23)
    below = sum(trend(range(50), random.exponential(1, 50)).p_increase < 0.05 for _ in range(400))
    assert 8 <= below <= 34


@pytest.mark.parametrize(
    ("times", "values"),
    [([0], [0]), ([], []), ([1, 1], [1, 2]), ([0, 1], [0]), ([0, 1], [0, math.nan]), ([0, math.inf], [0, 1])],
)
def test_what_has_no_trend(times: list[float], values: list[float]) -> None:
    """Too few times, unequal lengths and infinite values are refused."""
    with pytest.raises(ValueError, match=r"trend needs|shapes|finite"):
        trend(times, values)


series = st.lists(st.tuples(st.integers(0, 500), st.integers(-1000, 1000)), min_size=2, max_size=40).filter(
    lambda points: len({time for time, _ in points}) > 1
)


@given(series)
def test_what_holds_of_every_trend(points: list[tuple[int, int]]) -> None:
    """The slope lies in its interval; the order of points does not matter; a mirror turns the sign."""
    times, values = zip(*points, strict=True)
    found = trend(times, values)
    assert found.slope_low <= found.slope_per_s <= found.slope_high
    assert -1 <= found.tau <= 1
    assert 0 <= found.p_increase <= 1
    assert trend(times[::-1], values[::-1]) == found
    mirrored = trend(times, [-value for value in values])
    assert (mirrored.slope_low, mirrored.slope_high) == (-found.slope_high, -found.slope_low)
    assert mirrored.tau == pytest.approx(-found.tau)


def _score(times: list[int], values: tuple[int, ...] | list[int]) -> int:
    pairs = ((i, j) for j in range(len(times)) for i in range(j) if times[i] != times[j])
    return sum((values[j] > values[i]) - (values[j] < values[i]) for i, j in pairs)


def _with_score(n: int, score: int) -> list[int]:
    """An order of n values with that score: of the rising one, the first values moved down."""
    falling = (n * (n - 1) // 2 - score) // 2
    values = list(range(n))
    position = 0
    while falling:
        moves = min(falling, n - 1 - position)
        values.insert(position, values.pop(position + moves))
        falling -= moves
        position += 1
    return values
