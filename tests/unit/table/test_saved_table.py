"""A table that was written down, and is gone on with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.table.table_checkpoint import TableCheckpoint, packed
from bpfleakd.table.timeline import GAP_BINS_MAX
from bpfleakd.verdicts.growth import growth_bytes_per_s, growth_window_ns

S = 1_000_000_000
KEYS = [SiteKey(AllocationKind.HEAP, 23), SiteKey(AllocationKind.MMAP, 23), SiteKey(AllocationKind.HEAP, 29)]


def reading(*live: tuple[int, int, int]) -> np.ndarray:
    """Live bytes, live blocks and blocks allocated, a row for each site."""
    rows = np.zeros((len(live), len(COUNTERS)), np.int64)
    for row, (live_bytes, live_count, allocated_count) in enumerate(live):
        rows[row, [0, 1, 3]] = live_bytes, live_count, allocated_count
    return rows


def leaking(table: SiteTable, seconds: range, keys: list[SiteKey] = KEYS) -> SiteTable:
    """A table in which every site gains a block of this many bytes a second."""
    for second in seconds:
        table.update(second * S, keys, reading(*((101 * second, second, 7 * second) for _ in keys)))
    return table


def kept(table: SiteTable, *rows: int) -> TableCheckpoint:
    return table.checkpoint(np.array(rows or range(len(table)), np.intp))


def columns(table: SiteTable, *keys: SiteKey) -> list[list[list[float]]]:
    found = table.timeline.columns(np.array([table.keys.index(key) for key in keys], np.intp))
    return [column.tolist() for column in (found.low_bytes, found.low_count, found.born_count)]


def gained_bytes(table: SiteTable, key: SiteKey, edge_ns: int) -> float:
    return table.timeline.gained_bytes(np.array([table.row_of(key)]), edge_ns).item()


def test_a_table_goes_on_where_it_was() -> None:
    """With the same history as one that was never written down; the time between has bins without changes."""
    before = leaking(SiteTable(0), range(1, 31))
    table = leaking(SiteTable.restored(kept(before), 40 * S), range(40, 51))
    through = leaking(leaking(SiteTable(0), range(1, 31)), range(40, 51))
    edges_ns, gap_ns = table.timeline.edges_ns.tolist(), [second * S for second in range(31, 40)]
    assert edges_ns == sorted([*through.timeline.edges_ns.tolist(), *gap_ns])
    for mine, others in zip(columns(table, *KEYS), columns(through, *KEYS), strict=True):
        assert [row for index, row in enumerate(mine) if not 30 <= index < 39] == others
    low_bytes, low_count, births = columns(table, *KEYS)
    assert (low_bytes[30:39], low_count[30:39]) == ([low_bytes[29]] * 9, [low_count[29]] * 9)
    assert births[30:39] == [[0.0] * len(KEYS)] * 9
    assert table.totals == through.totals
    assert table.total_history.points == through.total_history.points
    assert table.began_ns == 0


def test_a_gap_has_no_readings() -> None:
    """Growth is that from one reading to another, and the figures of a time in it are those of its end."""
    table = leaking(SiteTable.restored(kept(leaking(SiteTable(0), range(1, 11))), 39 * S), range(40, 51))
    assert (table.read_ns // S).tolist() == [*range(11), *range(40, 51)]
    window_ns = growth_window_ns(table.read_ns, 20)
    assert window_ns == (10 * S, 50 * S)
    assert growth_bytes_per_s(gained_bytes(table, KEYS[0], window_ns[0]), *window_ns) == pytest.approx(101)
    past = table.past(25 * S)
    assert (past.start_ns, past.end_ns) == (10 * S, 40 * S)
    assert past.low_bytes[0] == 101 * 40
    assert table.past(5 * S).end_ns == 5 * S


def test_a_gap_that_no_reading_ended() -> None:
    """The next daemon was killed, too, before it read: it is one gap."""
    before = leaking(SiteTable(0), range(1, 11))
    unread = SiteTable.restored(kept(before), 20 * S)
    table = leaking(SiteTable.restored(kept(unread), 30 * S), range(31, 33))
    assert table.gaps_ns == [(10 * S, 31 * S)]
    assert len(table.timeline) == 10 + GAP_BINS_MAX + 1


def test_a_gap_is_a_gap() -> None:
    """From the last reading that was kept; several add up, also when there are many."""
    table = leaking(SiteTable(0), range(1, 11))
    for number in range(1, 41):
        table = SiteTable.restored(kept(table), (10 + 3 * number) * S)
        table = leaking(table, range(10 + 3 * number, 12 + 3 * number))
    assert table.unread_s == pytest.approx(3 + 39 * 2)
    assert len(table.gaps_ns) <= 16


def test_a_site_that_was_not_kept_seems_to_have_been_as_it_is() -> None:
    """It does not grow by what it had; a site that is new since then shows its growth from now on."""
    before = leaking(SiteTable(0), range(1, 31))
    table = leaking(SiteTable.restored(kept(before, 1), 40 * S), range(40, 44))
    low_bytes, low_count, births = columns(table, KEYS[0], KEYS[1])
    assert {row[0] for row in low_bytes[:30]} == {101.0 * 40}
    assert [row[0] for row in births] == [0.0] * (31 + 9) + [7.0] * 3
    assert [row[1] for row in low_count[:30]] == [float(second) for second in range(1, 31)]
    assert gained_bytes(table, KEYS[0], 5 * S) == 101 * (43 - 40)
    assert gained_bytes(table, KEYS[1], 5 * S) == gained_bytes(before, KEYS[1], 5 * S) + 101 * (43 - 30)
    new = SiteKey(AllocationKind.HEAP, 101)
    table.update(44 * S, [new], reading((1_009, 1, 1)))
    assert columns(table, new)[0][:-1] == [[0.0]] * (len(table.timeline) - 1)


def test_a_site_that_is_new_after_a_whole_table_had_nothing() -> None:
    """All others were written down."""
    before = leaking(SiteTable(0), range(1, 31), KEYS[:2])
    table = leaking(SiteTable.restored(kept(before), 40 * S), range(40, 41))
    assert columns(table, KEYS[2])[0] == [[0.0]] * (30 + 9) + [[101.0 * 40]]


@pytest.mark.parametrize(
    "damage",
    [
        {"ends_ns": []},
        {"ends_ns": [5, 4, 3]},
        {"ends_ns": list(range(1, 100))},
        {"lows_bytes": b""},
        {"lows_count": b"no columns"},
        {"births": packed(np.full((3, 3), np.nan))},
        {"births": packed(np.zeros((3, 4)))},
        {"allocated_count": [1]},
    ],
)
def test_what_is_damaged_is_refused(damage: dict) -> None:
    """Whatever it is."""
    checkpoint = kept(leaking(SiteTable(0), range(1, 4)))
    SiteTable.restored(checkpoint, 5 * S)
    with pytest.raises(ValueError, match=r"bins|columns"):
        SiteTable.restored(replace(checkpoint, timeline=replace(checkpoint.timeline, **damage)), 5 * S)


@pytest.mark.parametrize("damage", [{"sites": [("heap", 1)] * 3}, {"sites": [("heap", 1)]}, {"totals": []}])
def test_what_is_of_other_sites_is_refused(damage: dict) -> None:
    """As is an unknown kind."""
    checkpoint = kept(leaking(SiteTable(0), range(1, 4)))
    with pytest.raises(ValueError, match=r"call site|beginning"):
        SiteTable.restored(replace(checkpoint, **damage), 5 * S)
    with pytest.raises(ValueError, match="heaven"):
        SiteTable.restored(replace(checkpoint, sites=[("heap", 1), ("heap", 2), ("heaven", 3)]), 5 * S)


@given(st.lists(st.tuples(st.floats(0.1, 9), st.integers(0, 10**6), st.booleans()), min_size=2, max_size=80))
@settings(max_examples=40, deadline=None)
def test_births_are_counted_once(readings: list[tuple[float, int, bool]]) -> None:
    """However often a table is written down between readings."""
    table, now_ns, allocated = SiteTable(0), 0, 0
    for pause_s, live_bytes, is_restored in readings:
        now_ns += round(pause_s * S)
        allocated += 7
        if is_restored and len(table.timeline):
            table = SiteTable.restored(kept(table), now_ns)
        table.update(now_ns, KEYS[:1], reading((live_bytes, 1, allocated)))
    births = columns(table, KEYS[0])[2]
    assert sum(row[0] for row in births) == allocated
