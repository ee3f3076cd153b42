"""The history of one figure: bounded, with its beginning, and exact for the recent past."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.table.history import FULL_POINTS, MAX_POINTS, History

# (ns later, bytes more), over and over: most have to be thinned out.
PATTERNS = st.lists(st.tuples(st.integers(0, 20), st.integers(-3, 3)), max_size=40)
STEPS = st.builds(lambda pattern, times: pattern * times, PATTERNS, st.integers(1, 15))


def history_of(steps: list[tuple[int, int]]) -> tuple[History, list[tuple[int, int]]]:
    """A history with these points (ns later, bytes more), and the points."""
    time_ns, value = 1_000, 23
    history, told = History(time_ns, value), [(time_ns, value)]
    for later_ns, more in steps:
        time_ns, value = time_ns + later_ns, value + more
        history.append(time_ns, value)
        told.append((time_ns, value))
    return history, told


def told_at(told: list[tuple[int, int]], time_ns: int) -> int:
    """The last value at or before a time; 0 before the first."""
    return ([0] + [value for point_ns, value in told if point_ns <= time_ns])[-1]


@given(steps=STEPS)
def test_the_recent_past_is_exact(steps: list[tuple[int, int]]) -> None:
    """For the newest FULL_POINTS points, the value at any time is exact."""
    history, told = history_of(steps)
    exact_from_ns = history.points[-FULL_POINTS:][0][0]
    for time_ns in range(max(0, exact_from_ns - 1), told[-1][0] + 3):
        if time_ns >= exact_from_ns:
            assert history.at(time_ns) == told_at(told, time_ns)


@given(steps=STEPS)
def test_it_is_bounded_and_keeps_its_beginning(steps: list[tuple[int, int]]) -> None:
    """However much happens, there are at most MAX_POINTS, in order, the first and the last value as told."""
    history, told = history_of(steps)
    assert len(history) == len(history.points) <= MAX_POINTS
    assert history.points[0] == told[0]
    assert history.first_ns == told[0][0]
    assert history.last == told[-1][1]
    times = [time_ns for time_ns, _value in history.points]
    assert times == sorted(times)
    assert set(history.points) <= set(told)


@given(steps=STEPS)
def test_the_distant_past_is_coarser_but_not_invented(steps: list[tuple[int, int]]) -> None:
    """Further back, the value is one that the figure had at that time or before."""
    history, told = history_of(steps)
    for time_ns, _value in told:
        assert history.at(time_ns) in {value for point_ns, value in told if point_ns <= time_ns}


def test_before_the_beginning_there_was_nothing() -> None:
    """A figure is 0 before its first point, and constant after its last."""
    history = History(1_000, 23)
    history.append(2_000, 101)
    assert [history.at(t) for t in (0, 999, 1_000, 1_999, 2_000, 1 << 62)] == [0, 0, 23, 23, 101, 101]


def test_equal_values_take_no_room() -> None:
    """A constant figure has one point, however often it is added."""
    history = History(0, 23)
    for time_ns in range(10_000):
        history.append(time_ns, 23)
    assert history.points == [(0, 23)]


def test_several_values_at_one_time() -> None:
    """The last one told at a time is the one that holds."""
    history = History(5, 0)
    history.append(5, 23)
    history.append(5, 101)
    assert (history.at(4), history.at(5)) == (0, 101)


def test_many_changes_at_one_time() -> None:
    """The bound holds also where no time passes."""
    history = History(0, 0)
    for value in range(1, 10 * MAX_POINTS):
        history.append(0, value)
    assert len(history) <= MAX_POINTS
    assert history.at(0) == history.last == 10 * MAX_POINTS - 1


@pytest.mark.parametrize("value", [23, 101])
def test_time_that_goes_back_is_an_error(value: int) -> None:
    """Even with the value that holds anyway; and nothing has changed then."""
    history = History(1_000, 23)
    with pytest.raises(ValueError, match="back from 1000 to 999"):
        history.append(999, value)
    assert history.points == [(1_000, 23)]


def test_old_points_thin_out_first() -> None:
    """When room is needed the newest points stay, and older ones go until the oldest are far apart."""
    history = History(0, 0)
    for time_ns in range(1, 1_000):
        history.append(time_ns, time_ns)
    times = [time_ns for time_ns, _value in history.points]
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert times[0] == 0
    assert gaps[-FULL_POINTS + 1 :] == [1] * (FULL_POINTS - 1)
    assert max(gaps) > 100


@pytest.mark.parametrize("step", [1, 7, 1_000])
def test_old_points_are_a_part_of_their_age_apart(step: int) -> None:
    """However long the history is, each time has a point that is not much older."""
    history = History(0, 0)
    for time_ns in range(step, 100_000 * step, step):
        history.append(time_ns, time_ns)
    for share in (0.01, 0.1, 0.3, 0.5, 0.7, 0.9):
        age_ns = round(share * history.last)
        asked_ns = history.last - age_ns
        assert asked_ns - age_ns / 2 <= history.at(asked_ns) <= asked_ns


def test_points_within_the_resolution_are_one() -> None:
    """A figure that is added ten times per point reaches as far back as one added once."""
    history = History(0, 0)
    for time_ns in range(1, 10_000):
        history.append(time_ns, time_ns, 10)
        assert history.last == time_ns
    newest = [time_ns for time_ns, _value in history.points[-FULL_POINTS:]]
    assert {later - sooner for sooner, later in pairwise(newest[:-1])} == {10}
