"""Growth over a window: two states and the time between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.table.history import History
from bpfleakd.verdicts.growth import collected_window_ns, growth_bytes_per_s, growth_window_ns

S = 1_000_000_000


def history_of(*points: tuple[float, int]) -> History:
    """A history that begins with nothing at 0 s and has these (seconds, bytes)."""
    history = History(0, 0)
    for time_s, value in points:
        history.append(round(time_s * S), value)
    return history


def growth_between(history: History, start_ns: int, end_ns: int) -> float:
    return growth_bytes_per_s(history.at(end_ns) - history.at(start_ns), start_ns, end_ns)


def growth(history: History, now_s: float, *, began_s: float = 0, window_s: float = 10) -> float | None:
    """Read at the beginning of the window and at its end."""
    now_ns, began_ns = round(now_s * S), round(began_s * S)
    start_ns = max(began_ns, now_ns - round(window_s * S))
    edges_ns = np.array(sorted({began_ns, min(start_ns, max(now_ns, began_ns)), max(now_ns, began_ns)}))
    window_ns = growth_window_ns(edges_ns, window_s)
    return growth_between(history, *window_ns) if window_ns else None


def test_a_time_in_which_nobody_read() -> None:
    """Growth in 23 s without a reading is not growth in the last ten seconds: the window is longer then."""
    history = history_of((1, 23), (8, 8 * 23), (31, 31 * 23), (32, 32 * 23))
    edges_ns = np.array([0, 1, 8, 31, 32]) * S
    window_ns = growth_window_ns(edges_ns, 10)
    assert window_ns is not None
    assert growth_between(history, *window_ns) == 23.0


def test_steady_growth() -> None:
    """23 bytes a second are 23 bytes a second, whatever the window."""
    history = history_of(*((t, 23 * t) for t in range(1, 61)))
    for window_s in (1, 10, 59.0, 60):
        assert growth(history, 60, window_s=window_s) == 23.0


def test_only_the_window_counts() -> None:
    """Memory from before the window is not growth."""
    history = history_of((1, 1_000_003), (55, 1_000_003 + 230))
    assert growth(history, 60) == 23.0
    assert growth(history, 70) == 0.0


def test_a_change_at_the_edge_of_the_window() -> None:
    """A change at the very moment at which the window begins belongs to the state before it."""
    history = history_of((50, 230))
    assert growth(history, 60) == 0.0
    assert growth(history, 59.999_999_999) == 23.0


def test_a_recording_younger_than_the_window() -> None:
    """The window begins no earlier than the recording: two seconds count as two, not as ten."""
    history = History(100 * S, 0)
    history.append(101 * S, 23)
    assert growth(history, 102, began_s=100) == 11.5
    assert growth(history, 104, began_s=100) == 5.75


def test_a_site_younger_than_the_recording() -> None:
    """Before a site was seen it held nothing, so that its bytes were gained since the window began."""
    history = History(58 * S, 0)
    history.append(58 * S, 230)
    assert growth(history, 60) == 23.0


def test_shrinking() -> None:
    """Memory that is given back is negative growth."""
    history = history_of((1, 230), (55, 0))
    assert growth(history, 60) == -23.0


def test_what_comes_and_goes_does_not_show() -> None:
    """A difference of two states: a peak within the window is none of them."""
    assert growth(history_of((53, 1_000_003), (54, 0)), 60) == 0.0


@pytest.mark.parametrize(
    ("passed_s", "window_s"), [(0, 10), (-1, 10), (0.06, 10), (1.9, 10), (0.9, 1), (0, 1)]
)
def test_too_little_time(passed_s: float, window_s: float) -> None:
    """No figure rather than a wrong one: a reading takes time, and allocations come in blocks."""
    history = history_of((5, 23))
    assert growth(history, 5 + passed_s, began_s=5, window_s=window_s) is None


def test_a_window_of_less_than_two_seconds() -> None:
    """It is possible, with its errors."""
    assert growth(history_of((59.5, 23)), 60, window_s=1) == 23.0


@given(
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1 << 30)), max_size=30),
    now=st.integers(0, 200),
    began=st.integers(0, 200),
    window_s=st.floats(1, 300),
)
def test_growth_is_the_difference_over_the_time(
    steps: list[tuple[int, int]], now: int, began: int, window_s: float
) -> None:
    """For any history: bytes now less bytes then, over the seconds between, if these are enough."""
    told, time_s = [(0, 0)], 0
    for later_s, value in steps:
        time_s += later_s
        told.append((time_s, value))

    def value_at(time_ns: float) -> int:
        return [value for point_s, value in told if point_s * S <= time_ns][-1]

    start_ns = max(began * S, now * S - round(window_s * S), 0)
    expected = None
    if now * S - start_ns >= min(round(window_s * S), 2 * S):
        expected = (value_at(now * S) - value_at(start_ns)) / ((now * S - start_ns) / S)
    history = history_of(*told[1:])
    assert growth(history, now, began_s=began, window_s=window_s) == pytest.approx(expected)


def collected_window(
    edges_s: Sequence[float], collected_s: Sequence[float], window_s: float
) -> list[float] | None:
    edges_ns, collected_ns = (np.array(times_s, np.float64) * S for times_s in (edges_s, collected_s))
    found = collected_window_ns(edges_ns.astype(np.int64), collected_ns.astype(np.int64), window_s)
    return None if found is None else [time_ns / S for time_ns in found]


class TestCollections:
    """Figures that change only at collections, each of which shows the previous one's survivors."""

    EDGES_S = tuple(float(second) for second in range(200))

    def test_it_goes_from_one_collection_to_another(self) -> None:
        """Whether one was just now or a minute ago, and however far apart they are."""
        assert collected_window(self.EDGES_S, [10, 95, 180, 190], 60) == [189, 95, 180]
        assert collected_window(self.EDGES_S, [10, 95, 180, 250], 60) == [179, 10, 95]
        assert collected_window(self.EDGES_S, [10, *range(100, 199, 5)], 60) == [139, 130, 190]

    def test_edges_that_are_far_apart(self) -> None:
        """The live bytes at an edge are those of the last collection before it, with its own time."""
        assert collected_window([0, 40, 100, 160], [10, 30, 50, 90, 155], 30) == [100, 50, 90]
        assert collected_window([0, 100, 160], [10, 30, 50, 90, 155], 100) == [100, 50, 90]

    @pytest.mark.parametrize("collected_s", [[], [10], [10, 180], [10, 11, 180], [180, 181, 182]])
    def test_before_two_are_shown(self, collected_s: list[float]) -> None:
        """The live bytes at the attach are from an earlier, unknown time."""
        assert collected_window(self.EDGES_S, collected_s, 60) is None
