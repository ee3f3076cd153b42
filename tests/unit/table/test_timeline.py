"""The timeline, against every reading kept."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.table.timeline import BINS_MAX, BINS_MIN, CELLS_MAX, Timeline

S = 1_000_000_000
READING = st.tuples(
    st.floats(0.1, 5), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 99)), max_size=4)
)


NOTHING = np.zeros(0, np.intp), *(np.zeros(0, np.int64) for _column in range(3))


def arrays(sites: range, live: dict[int, tuple[int, int]], allocated: dict[int, int]) -> list[np.ndarray]:
    return [
        np.array([live[site][0] for site in sites], np.int64),
        np.array([live[site][1] for site in sites], np.int64),
        np.array([allocated[site] for site in sites], np.int64),
    ]


@settings(max_examples=50)
@given(st.lists(READING, min_size=1, max_size=90))
def test_bins_hold_the_least_and_the_births(readings: list) -> None:
    """However bins were joined: each has the least of its readings, and all births are in one of them."""
    timeline, now_ns = Timeline(0), 0
    live: dict[int, tuple[int, int]] = {}
    allocated: dict[int, int] = {}
    kept: list[tuple[int, dict[int, tuple[int, int]]]] = []
    for pause_s, sites in readings:
        now_ns += round(pause_s * S)
        for site, figures in enumerate(sites):
            live[site] = figures
            allocated[site] = allocated.get(site, 0) + 7
        timeline.update(now_ns, np.arange(len(sites)), *arrays(range(len(sites)), live, allocated))
        kept.append((now_ns, dict(live)))
    columns = timeline.columns(np.arange(len(live)))
    edges_ns = timeline.edges_ns
    assert len(timeline) <= BINS_MAX
    assert (edges_ns[0], edges_ns[-1]) == (0, now_ns)
    assert (np.diff(edges_ns) > 0).all()
    assert columns.all_born_count == pytest.approx(columns.born_count.sum(axis=1))
    for site in live:
        assert columns.born_count[:, site].sum() == allocated[site]
        for index, (start_ns, end_ns) in enumerate(pairwise(edges_ns)):
            inside = [at.get(site, (0, 0)) for time_ns, at in kept if start_ns < time_ns <= end_ns]
            assert columns.low_bytes[index, site] == min(size for size, _ in inside)
            assert columns.low_count[index, site] == min(count for _, count in inside)


@settings(max_examples=50)
@given(st.lists(READING, min_size=1, max_size=90), st.lists(READING, max_size=9))
def test_an_heir_has_the_sum_of_both_pasts(readings: list, later: list) -> None:
    """Sites 2 and 3 hand over to site 0: its figures are the sums in each bin, and go on from there."""
    timelines = [Timeline(0), Timeline(0)]
    now_ns, live, allocated = 0, dict.fromkeys(range(4), (0, 0)), dict.fromkeys(range(4), 0)

    def read(pause_s: float, sites: list) -> None:
        nonlocal now_ns
        now_ns += round(pause_s * S)
        for site, figures in enumerate(sites):
            live[site], allocated[site] = figures, allocated[site] + 7
        for timeline in timelines:
            timeline.update(now_ns, np.arange(len(sites)), *arrays(range(len(sites)), live, allocated))

    for reading in readings:
        read(*reading)
    # Sites that go have no live blocks.
    read(1.0, [live[0], live[1], (0, 0), (0, 0)])
    timelines[1].hand_over(np.array([2, 3]), np.array([0, 0]))
    for pause_s, sites in later:
        read(pause_s, sites[:2])
    apart, together = (timeline.columns(np.arange(4)) for timeline in timelines)
    for name in ("low_bytes", "low_count", "born_count"):
        before, after = getattr(apart, name), getattr(together, name)
        assert np.allclose(before[:, [0, 2, 3]].sum(axis=1), after[:, 0], rtol=1e-6)
        assert (before[:, 1] == after[:, 1]).all()
        assert not after[:, 2:].any()


@settings(max_examples=50)
@given(st.lists(READING, min_size=1, max_size=90))
def test_what_was_gained_since_an_edge(readings: list) -> None:
    """Since any edge that is left, however bins were joined; sites that came later had nothing."""
    timeline, now_ns = Timeline(0), 0
    live = dict.fromkeys(range(4), (0, 0))
    live_bytes = {0: [0, 0, 0, 0]}
    for pause_s, sites in readings:
        now_ns += round(pause_s * S)
        live |= dict(enumerate(sites))
        timeline.update(
            now_ns, np.arange(len(sites)), *arrays(range(len(sites)), live, dict.fromkeys(live, 0))
        )
        live_bytes[now_ns] = [size for size, _count in live.values()]
    rows = np.array([2, 0, 3])
    for edge_ns in timeline.edges_ns.tolist():
        gained = [live_bytes[now_ns][row] - live_bytes[edge_ns][row] for row in rows]
        assert timeline.gained_bytes(rows, edge_ns).tolist() == gained


@settings(max_examples=50)
@given(st.lists(READING, min_size=1, max_size=90), st.sets(st.integers(0, 3)), st.integers(0, 90))
def test_rows_that_are_forgotten_have_no_past(readings: list, forgotten: set[int], after: int) -> None:
    """Whatever they had before, they have what came afterwards; the others are as if nothing had happened."""
    timelines = {True: Timeline(0), False: Timeline(0)}
    now_ns, rows = 0, np.array(sorted(forgotten), np.intp)
    live: dict[int, tuple[int, int]] = {}
    allocated = {True: dict.fromkeys(range(4), 0), False: dict.fromkeys(range(4), 0)}
    for number, (pause_s, sites) in enumerate(readings):
        now_ns += round(pause_s * S)
        for site, figures in enumerate(sites):
            live[site] = figures
            for counts in allocated.values():
                counts[site] += 7
        for forgets, timeline in timelines.items():
            figures = arrays(range(len(sites)), live, allocated[forgets])
            timeline.update(now_ns, np.arange(len(sites)), *figures)
        if number == after:
            timelines[True].columns(np.arange(4))
            timelines[True].forget(rows)
            allocated[True] |= dict.fromkeys(forgotten, 0)
            forgotten_ns = now_ns
    whole, without = (timelines[forgets].columns(np.arange(4)) for forgets in (False, True))
    others = sorted(set(range(4)) - forgotten) if after < len(readings) else [0, 1, 2, 3]
    for name in ("low_bytes", "low_count", "born_count"):
        assert (getattr(whole, name)[:, others] == getattr(without, name)[:, others]).all()
    if after < len(readings):
        before = without.ends_s * S <= forgotten_ns
        assert not without.born_count[before][:, rows].any()
        born = without.born_count[:, rows].sum(axis=0)
        assert born.tolist() == [allocated[True][row] for row in rows.tolist()]


def test_the_resolution_is_a_part_of_the_age() -> None:
    """After six hours the newest bins are narrow, and old ones no wider than a part of their age."""
    timeline = Timeline(0)
    for second in range(1, 21_601):
        timeline.update(second * S, *NOTHING)
    edges_s = timeline.edges_ns / S
    widths_s, ages_s = np.diff(edges_s), edges_s[-1] - edges_s[:-1]
    assert len(timeline) == BINS_MAX
    assert widths_s[-5:].max() <= 2
    assert (widths_s[1:] / ages_s[1:])[:-8].max() < 0.25


def test_many_sites_have_fewer_bins() -> None:
    """Never fewer than the least, and what does not change takes no room."""
    sites = 100_000
    calm, busy, rows = Timeline(0), Timeline(0), np.arange(sites)
    for second in range(1, 80):
        figures = np.full(sites, second)
        if second < BINS_MIN + 3:
            busy.update(second * S, rows, figures, figures, figures)
        changed = rows if second == 1 else rows[:23]
        calm.update(second * S, changed, *(figures[changed] for _column in range(3)))
    assert len(busy) == BINS_MIN
    assert len(calm) == BINS_MAX
    assert sum(len(one.rows) for one in calm._bins) < sites + 23 * BINS_MAX < CELLS_MAX


def test_a_past_time() -> None:
    """The bin that it is in, with nothing for sites that came later."""
    timeline = Timeline(0)
    for second in range(1, 6):
        figures = np.full(2, second * 100)
        timeline.update(second * 2 * S, np.arange(2), figures, figures, figures)
    past = timeline.at(5 * S, 3)
    assert (past.start_ns, past.end_ns) == (4 * S, 6 * S)
    assert (past.low_bytes.tolist(), past.low_count.tolist()) == ([300, 300, 0], [300, 300, 0])
    assert timeline.at(0, 2).end_ns == 2 * S
    assert timeline.at(99 * S, 2).end_ns == 10 * S
    with pytest.raises(ValueError, match="nothing"):
        Timeline(0).at(0, 1)


def test_births_of_all_sites_stay_when_rows_are_forgotten_or_not_stored() -> None:
    timeline, both = Timeline(0), np.arange(2)
    for second in range(1, 41):
        figures = np.array([second, 2 * second], np.int64)
        timeline.update(second * S, both, figures, figures, 10 * figures)
    timeline.forget(np.array([0]))
    restored = Timeline.restored(timeline.checkpoint(np.array([1])))
    for one in (timeline, restored):
        columns = one.columns(np.zeros(1, np.intp))
        assert columns.all_born_count.sum() == 40 * 30
        assert np.cumsum(columns.all_born_count) == pytest.approx(30 * columns.ends_s)
