"""Sites and their counters, against a ledger of every single block."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bpfleakd.model.site import AllocationKind, SiteCounters, SiteKey
from bpfleakd.table.history import MAX_POINTS
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.verdicts.growth import growth_window_ns

NS_PER_S = 1_000_000_000


def heap(stack_id: int) -> SiteKey:
    return SiteKey(AllocationKind.HEAP, stack_id)


def rows(*counters: tuple[int, ...]) -> np.ndarray:
    """Columns that are not given are zero."""
    padded = [counter + (0,) * (len(COUNTERS) - len(counter)) for counter in counters]
    return np.array(padded, np.int64).reshape(-1, len(COUNTERS))


def gained(table: SiteTable, edge_ns: int, *sites: SiteKey) -> list[float]:
    found = np.array([table.row_of(site) for site in sites], np.intp)
    return table.timeline.gained_bytes(found, edge_ns).tolist()


@dataclass
class Ledger:
    """Every block by itself, as the programs record it: the address identifies its site."""

    blocks: dict[int, tuple[SiteKey, int]] = field(default_factory=dict)
    allocated_bytes: Counter[SiteKey] = field(default_factory=Counter)
    allocated_count: Counter[SiteKey] = field(default_factory=Counter)
    freed_count: int = 0
    removed: dict[SiteKey, tuple[int, int]] = field(default_factory=dict)

    def allocate(self, site: SiteKey, address: int, size: int) -> None:
        self.free(address)
        self.blocks[address] = site, size
        self.allocated_bytes[site] += size
        self.allocated_count[site] += 1

    def free(self, address: int) -> None:
        self.freed_count += self.blocks.pop(address, None) is not None

    def reallocate(self, site: SiteKey, old: int, new: int, size: int, fails: bool) -> None:
        if not fails:
            self.free(old)
            if size:
                self.allocate(site, new, size)

    def counters_of(self, site: SiteKey) -> SiteCounters:
        sizes = [size for owner, size in self.blocks.values() if owner == site]
        # After a removal, the kernel's counters restart.
        removed_bytes, removed_count = self.removed.get(site, (0, 0))
        allocated_bytes = self.allocated_bytes[site] - removed_bytes
        return SiteCounters(
            sum(sizes), len(sizes), allocated_bytes, self.allocated_count[site] - removed_count
        )

    def sites(self) -> set[SiteKey]:
        return {site for site in self.allocated_count if self.counters_of(site).allocated_count}


SITES = st.integers(1, 12).map(heap)
ADDRESSES = st.integers(1, 40)
SIZES = st.integers(0, 1 << 40)


class Process(RuleBasedStateMachine):
    """A process that allocates, frees, reallocates, and is looked at from time to time."""

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger()
        self.now_ns = 5 * NS_PER_S
        self.table = SiteTable(self.now_ns)
        self.live_by_time = {self.now_ns: 0}

    @rule(site=SITES, address=ADDRESSES, size=SIZES)
    def allocate(self, site: SiteKey, address: int, size: int) -> None:
        self.ledger.allocate(site, address, size)

    @rule(address=ADDRESSES)
    def free(self, address: int) -> None:
        self.ledger.free(address)

    @rule(site=SITES, old=ADDRESSES, new=ADDRESSES, size=SIZES, fails=st.booleans())
    def reallocate(self, site: SiteKey, old: int, new: int, size: int, fails: bool) -> None:
        self.ledger.reallocate(site, old, new, size, fails)

    @rule(later_ns=st.integers(0, 3 * NS_PER_S), order=st.randoms(use_true_random=False), whole=st.booleans())
    def tick(self, later_ns: int, order, whole: bool) -> None:
        """The kernel's map is read: its sites come in any order, those that did not change or not."""
        self.now_ns += later_ns
        known = {site: self.table.counters(site) for site in self.sites()}
        now = {site: self.ledger.counters_of(site) for site in self.ledger.sites()}
        different = [site for site in now if now[site] != known.get(site, SiteCounters(0, 0, 0, 0))]
        read = list(now) if whole else different
        order.shuffle(read)
        changed_ns = {site: self.changed_ns(site) for site in known}

        counters = rows(
            *((c.live_bytes, c.live_count, c.allocated_bytes, c.allocated_count) for c in map(now.get, read))
        )
        assert self.table.update(self.now_ns, read, counters) == len(different)

        for site in known.keys() - set(different):
            assert self.changed_ns(site) == changed_ns[site]
        self.live_by_time[self.now_ns] = sum(size for _site, size in self.ledger.blocks.values())
        self.expect_the_ledger()

    @rule(order=st.randoms(use_true_random=False))
    def remove(self, order) -> None:
        """Some sites without live blocks are removed, of which all is read."""
        dead = [
            row
            for row, site in zip(self.table.rows.tolist(), self.sites(), strict=True)
            if not self.table.counters(site).live_count
            and self.table.counters(site) == self.ledger.counters_of(site)
        ]
        order.shuffle(dead)
        chosen = np.array(dead[: len(dead) // 2 + 1], np.intp)
        for site in self.table.keys_of(chosen):
            self.ledger.removed[site] = self.ledger.allocated_bytes[site], self.ledger.allocated_count[site]
        self.table.remove(chosen)
        assert not set(self.table.keys_of(chosen)) & set(self.sites())

    @precondition(lambda self: self.ledger.blocks)
    @rule()
    def end(self) -> None:
        """The process exits: nothing more happens, and its last figures are those of its last moment."""
        self.tick(0, _Unshuffled(), whole=True)
        self.begin()

    def changed_ns(self, site: SiteKey) -> int:
        return self.table.changed_ns(np.array([self.table.row_of(site)])).item()

    def sites(self) -> list[SiteKey]:
        return self.table.keys_of(self.table.rows)

    def expect_the_ledger(self) -> None:
        ledger, table = self.ledger, self.table
        for site in self.sites():
            assert table.counters(site) == ledger.counters_of(site)
        sizes = [size for _site, size in ledger.blocks.values()]
        totals = table.totals
        assert (totals.live_bytes, totals.live_count) == (sum(sizes), len(sizes))
        assert totals.allocated_bytes == ledger.allocated_bytes.total()
        assert totals.live_count == totals.allocated_count - ledger.freed_count
        assert set(self.sites()) == ledger.sites()
        assert table.used_count == len(ledger.sites())

    @invariant()
    def the_sum_has_a_history(self) -> None:
        if hasattr(self, "table"):
            assert self.table.total_history.last == self.live_by_time[self.table.updated_ns]
            assert len(self.table.total_history) <= MAX_POINTS


class _Unshuffled:
    def shuffle(self, _sites: list[SiteKey]) -> None:
        pass


Process.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_process = Process.TestCase
test_any_process.__doc__ = "Whatever a process does: live = allocated - freed, for every site and for all."


class TestUpdate:
    """The changes by one reading of the kernel's counters."""

    def test_new_sites_began_with_nothing(self) -> None:
        """Before it was seen for the first time a site held nothing."""
        table = SiteTable(1_000)
        assert table.update(5_000, [heap(1)], rows((23, 1, 23, 1))) == 1
        table.update(6_000, [], rows())
        assert gained(table, 1_000, heap(1)) == [23]
        assert gained(table, 6_000, heap(1)) == [0]

    def test_an_empty_reading(self) -> None:
        """No sites at all: time passes and nothing else."""
        table = SiteTable(1_000)
        assert table.update(5_000, [], rows()) == 0
        assert (len(table), table.updated_ns, table.totals) == (0, 5_000, SiteCounters(0, 0, 0, 0))

    def test_sites_that_are_not_named_stay(self) -> None:
        """A reading that misses a site changes nothing of it, and it never disappears."""
        table = SiteTable(0)
        table.update(1, [heap(1), heap(2)], rows((23, 1, 23, 1), (101, 1, 101, 1)))
        table.update(2, [heap(2)], rows((0, 0, 101, 1)))
        assert table.keys == (heap(1), heap(2))
        assert table.counters(heap(1)) == SiteCounters(23, 1, 23, 1)
        assert table.totals == SiteCounters(23, 1, 124, 2, peak_live_bytes=124)

    def test_unchanged_sites_cost_nothing(self) -> None:
        """Of a thousand sites, only the one that changed is updated and counted."""
        keys = [heap(n) for n in range(1_000)]
        table = SiteTable(0)
        counters = rows(*((n, 1, n, 1) for n in range(1_000)))
        table.update(1, keys, counters)
        counters = counters.copy()
        counters[23, :4] += (7, 1, 7, 1)
        assert table.update(2, keys, counters) == 1
        assert table.changed_ns(np.arange(22, 25)).tolist() == [1, 2, 1]

    def test_the_callers_array_is_not_kept(self) -> None:
        """Batches are overwritten by the next one: the table keeps its own copy."""
        table = SiteTable(0)
        counters = rows((23, 1, 23, 1))
        table.update(1, [heap(1)], counters)
        counters[:] = 0
        assert table.counters(heap(1)) == SiteCounters(23, 1, 23, 1)

    def test_sites_that_free_what_came_before_the_attach(self) -> None:
        """Counters that race may be negative for a moment; sums and history can stand it."""
        table = SiteTable(0)
        table.update(1, [heap(1)], rows((-23, -1, 0, 0)))
        assert table.totals.live_bytes == table.total_history.last == -23
        assert gained(table, 0, heap(1)) == [-23]

    def test_unknown_sites(self) -> None:
        """An unknown site has neither counters nor a row."""
        table = SiteTable(0)
        assert table.row_of(heap(1)) == -1
        with pytest.raises(KeyError):
            table.counters(heap(1))

    def test_columns_cannot_be_written(self) -> None:
        """The view of all counters is for reading."""
        table = SiteTable(0)
        table.update(1, [heap(1)], rows((23, 1, 23, 1)))
        assert table.columns().tolist() == [[23, 1, 23, 1, 0, 0, 0, 0]]
        with pytest.raises(ValueError, match="read-only"):
            table.columns()[0, 0] = 0


def test_the_overflow_site_counts_as_used_when_it_is() -> None:
    """It is there from the beginning, and shown only when something was counted there."""
    table = SiteTable(0)
    table.update(1, [heap(0), heap(7)], rows((0, 0, 0, 0), (23, 1, 23, 1)))
    assert (len(table), table.used_count, table.used_rows.tolist()) == (2, 1, [1])
    table.update(2, [heap(0)], rows((0, 0, 101, 1)))
    assert table.used_rows.tolist() == [0, 1]


def test_files_are_not_in_the_totals() -> None:
    """Pages of files are not memory of the process' own; their sites are there all the same."""
    table = SiteTable(0)
    file = SiteKey(AllocationKind.FILE, 1)
    table.update(1, [heap(1), file], rows((23, 1, 23, 1), (101, 1, 103, 2)))
    assert table.totals == SiteCounters(23, 1, 23, 1, peak_live_bytes=23)
    assert table.total_history.last == 23
    assert table.counters(file) == SiteCounters(101, 1, 103, 2)


def test_temporary_blocks_add_up_and_peaks_do_not() -> None:
    """Sites peak at different times: the peak of all is the given or the observed one."""
    table = SiteTable(0)
    counters = rows((23, 1, 100, 9, 7, 90), (0, 0, 50, 5, 3, 50))
    table.update(1, [heap(1), heap(2)], counters)
    assert table.counters(heap(1)) == SiteCounters(23, 1, 100, 9, 7, 90)
    assert table.totals == SiteCounters(23, 1, 150, 14, temporary_count=10, peak_live_bytes=23)
    table.note_peak(101)
    table.note_peak(99)
    assert table.totals.peak_live_bytes == 101
    table.update(2, [heap(1)], rows((107, 1, 300, 11, 7, 107)))
    assert table.totals.peak_live_bytes == 107


@given(kinds=st.lists(st.sampled_from(AllocationKind), min_size=2, max_size=5, unique=True))
def test_one_stack_may_be_several_sites(kinds: list[AllocationKind]) -> None:
    """The kind belongs to the key: mappings and allocations of a stack are counted separately."""
    table = SiteTable(0)
    keys = [SiteKey(kind, 23) for kind in kinds]
    table.update(1, keys, rows(*((n, 1, n, 1) for n in range(1, len(keys) + 1))))
    assert [table.counters(key).live_bytes for key in keys] == list(range(1, len(keys) + 1))


def test_what_was_there_before_is_no_growth() -> None:
    """A Go program knows its earlier blocks: they count from the beginning, also in the history."""
    table = SiteTable(0)
    go = SiteKey(AllocationKind.GO_HEAP, 7)
    table.begin_with([go], rows((1000, 10, 5000, 50)))
    table.update(NS_PER_S, [go], rows((1000, 10, 5000, 50)))
    table.update(2 * NS_PER_S, [go], rows((1200, 12, 5300, 53)))
    assert table.totals.live_bytes == 1200
    assert gained(table, 0, go) == [200]
    assert table.total_history.points == [(0, 1000), (2 * NS_PER_S, 1200)]
    columns = table.timeline.columns(np.array([0]))
    assert columns.born_count.sum() == 3
    assert columns.low_count[0, 0] == 10
    assert not table.have_blocks(np.array([0]))[0]
    assert not table.are_heap(np.array([0]))[0]


def test_what_is_not_known_from_the_past_begins_with_the_first_reading() -> None:
    """However long it took until then: the gain in that time is unknown."""
    table = SiteTable(0, knows_past=False)
    site = SiteKey(AllocationKind.HEAP, 7)
    table.update(3 * NS_PER_S, [site], rows((1000, 10, 5000, 50)))
    assert table.began_ns == 3 * NS_PER_S
    table.update(4 * NS_PER_S, [site], rows((1100, 11, 5300, 53)))
    assert growth_window_ns(table.timeline.edges_ns, 60.0) is None
    table.update(5 * NS_PER_S, [site], rows((1200, 12, 5600, 56)))
    window_ns = growth_window_ns(table.timeline.edges_ns, 60.0)
    assert window_ns == (3 * NS_PER_S, 5 * NS_PER_S)
    start_ns, end_ns = window_ns
    assert gained(table, start_ns, site) == [200]
    assert table.total_history.at(end_ns) - table.total_history.at(start_ns) == 200


def test_many_readings_do_not_shorten_the_history_of_the_total() -> None:
    """Every report brings a reading: with seven a second, growth is still that of a minute."""
    table = SiteTable(0)
    site = SiteKey(AllocationKind.HEAP, 7)
    for reading in range(1, 7 * 300):
        table.update(reading * NS_PER_S // 7, [site], rows((23 * reading, reading, 23 * reading, reading)))
    window_ns = growth_window_ns(table.timeline.edges_ns, 60.0)
    assert window_ns is not None
    before, now = map(table.total_history.at, window_ns)
    gained_per_s = (now - before) * NS_PER_S / (window_ns[1] - window_ns[0])
    assert gained_per_s == pytest.approx(7 * 23, rel=0.01)
