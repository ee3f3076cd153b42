"""Tables in shards: the walker finds what the table has, and room is reused."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.elf.image import ElfImage
from bpfleakd.kernel.abi import MAX_UNWIND_MAPPINGS, UNWIND_SHARD_WORDS
from bpfleakd.kernel.unwind_tables.mapping_list import TableMapping
from bpfleakd.kernel.unwind_tables.shards import Piece, StoreFull
from bpfleakd.kernel.unwind_tables.store import OF_OTHERS, UnwindStore
from bpfleakd.process.mappings import read_mappings
from bpfleakd.unwind.build import table_of
from bpfleakd.unwind.managed_code import CodeRange, managed_rule
from bpfleakd.unwind.rules import GAP, RESERVED_RULES, STOP, CfaKind, RbpKind, UnwindRule
from bpfleakd.unwind.table import PAGE_BYTES, UnwindTable, check

from .fake_kernel import FakeKernel, store_in

PID = 4_711
RSP = [UnwindRule(CfaKind.RSP, 8 * n) for n in range(1, 24)]


def a_table(
    rows_by_page: Sequence[int], text_start: int = 0x1000, rules: Sequence[UnwindRule] = RSP
) -> UnwindTable:
    """A table with this many rows on each page, spread evenly, with consecutive rules."""
    addresses = np.concatenate([np.arange(count) * (PAGE_BYTES // count) for count in rows_by_page])
    numbers = np.arange(len(addresses)) % len(rules) + len(RESERVED_RULES)
    table = UnwindTable(
        build_id=None,
        text_start=text_start,
        rows=(addresses | numbers << 12).astype(np.uint32),
        page_index=np.concatenate([[0], np.cumsum(rows_by_page)]).astype(np.uint32),
        rules=(*RESERVED_RULES, *rules),
        fde_count=len(addresses),
    )
    check(table)
    return table


def repeated(table: UnwindTable, times: int) -> UnwindTable:
    """The text of a table many times over, one behind the other."""
    index = table.page_index.astype(np.int64)
    starts = np.concatenate([index[:-1] + n * len(table.rows) for n in range(times)])
    page_index = np.append(starts, times * len(table.rows)).astype(np.uint32)
    large = replace(table, rows=np.tile(table.rows, times), page_index=page_index)
    check(large)
    return large


def mapped(table: UnwindTable, pieces: tuple[Piece, ...], bias: int) -> TableMapping:
    """The whole text of a table in one mapping."""
    return TableMapping(table.text_start + bias, table.text_end + bias, bias, pieces)


def some_addresses(table: UnwindTable, count: int = 4_000) -> list[int]:
    """Addresses of the file: anywhere, around rows, and at both ends."""
    chosen = random.Random(23)
    anywhere = [chosen.randrange(table.text_start, table.text_end) for _ in range(count)]
    pages = [chosen.randrange(table.page_count) for _ in range(count)]
    rows = [chosen.randrange(*table.page_index[page : page + 2].tolist()) for page in pages]
    around = [
        table.text_start + page * PAGE_BYTES + (int(table.rows[row]) & 0xFFF) + chosen.choice((-1, 0, 1))
        for page, row in zip(pages, rows, strict=True)
    ]
    return [
        table.text_start,
        *anywhere,
        *(vaddr for vaddr in around if vaddr >= table.text_start),
        table.text_end - 1,
    ]


def expect_found(kernel: FakeKernel, pid: int, table: UnwindTable, bias: int, vaddrs: Iterable[int]) -> None:
    vaddrs = list(vaddrs)
    found = kernel.rules_at(pid, [vaddr + bias for vaddr in vaddrs])
    for vaddr, rule in zip(vaddrs, found, strict=True):
        assert rule == table.lookup(vaddr), f"at {vaddr:#x}"


@pytest.fixture(scope="module")
def libc_table() -> UnwindTable:
    """The table of the C library of this machine."""
    name = re.compile(r"libc(-2\.\d+)?\.so(\.6)?")
    path = next(m.path for m in read_mappings(os.getpid()) if name.fullmatch(Path(m.path).name))
    with ElfImage.open(path) as image:
        return table_of(image)


class TestSearch:
    """What the walker finds."""

    @pytest.mark.parametrize("bias", [0, 0x7F12_3456_7000, -0x1000])
    def test_rules_of_the_c_library(self, libc_table: UnwindTable, bias: int) -> None:
        """At any address of libc, wherever it is mapped, the walker finds the table's rule."""
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.add("libc", libc_table)
            pieces = store.use("libc", PID)
            assert len(pieces) == 1
            assert store.publish(PID, [mapped(libc_table, pieces, bias)]) == 0

            expect_found(kernel, PID, libc_table, bias, some_addresses(libc_table))

    def test_a_table_larger_than_a_shard(self, libc_table: UnwindTable) -> None:
        """A table in several pieces is searched like a whole one, also where the pieces meet."""
        table = repeated(libc_table, 21)
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.add("large", table)
            pieces = store.use("large", PID)
            store.publish(PID, [mapped(table, pieces, 0x7F00_0000_0000)])

            assert len(pieces) == len(kernel.shards) >= 3
            assert [piece.end for piece in pieces[:-1]] == [piece.start for piece in pieces[1:]]
            cuts = [piece.start + distance for piece in pieces[1:] for distance in range(-50, 50)]
            expect_found(kernel, PID, table, 0x7F00_0000_0000, some_addresses(table) + cuts)

    def test_pieces_are_as_large_as_can_be(self, libc_table: UnwindTable) -> None:
        """No piece but the last would have had room for one page more, and none is larger than a shard."""
        table = repeated(libc_table, 21)
        most = np.diff(table.page_index).max() + 1
        with store_in(FakeKernel()) as store:
            store.add("large", table)
            sizes = [piece.words for piece in store.use("large", PID)]
            assert all(UNWIND_SHARD_WORDS - most < size <= UNWIND_SHARD_WORDS for size in sizes[:-1])
            assert sum(sizes) == len(table.rows) + table.page_count + len(sizes)

    @given(
        rows_by_page=st.lists(st.integers(1, 40), min_size=1, max_size=30),
        text_page=st.integers(0, 1 << 36),
        bias_pages=st.integers(0, 1 << 35),
        before=st.integers(0, 60),
        cut=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    )
    @settings(max_examples=60, deadline=None)
    def test_any_table_in_any_mapping(
        self, rows_by_page: list[int], text_page: int, bias_pages: int, before: int, cut: tuple[int, int]
    ) -> None:
        """Any table behind any other, of which any part is mapped: inside its rules, outside the gap."""
        table = a_table(rows_by_page, text_page * PAGE_BYTES)
        bias = (bias_pages - text_page) * PAGE_BYTES
        first, last = (table.text_start + page * PAGE_BYTES for page in sorted(cut))
        kernel = FakeKernel(shards_max=1)
        with store_in(kernel) as store:
            store.add("before", a_table([before + 1]))
            store.add("table", table)
            store.use("before", PID)
            mapping = TableMapping(first + bias, last + bias, bias, store.use("table", PID))
            store.publish(PID, [mapping])

            vaddrs = range(table.text_start - PAGE_BYTES, table.text_end + PAGE_BYTES, 97)
            vaddrs = [vaddr for vaddr in vaddrs if vaddr + bias >= 0]
            found = kernel.rules_at(PID, [vaddr + bias for vaddr in vaddrs])
            assert found == [table.lookup(vaddr) if first <= vaddr < last else GAP for vaddr in vaddrs]

    def test_tables_of_several_files_share_their_rules(self) -> None:
        """Equal rules have one number in all tables, and every table finds its own."""
        one, other = a_table([7, 23], rules=RSP[:5]), a_table([101], rules=list(reversed(RSP[2:9])))
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.add("one", one)
            store.add("other", other)
            store.publish(PID, [mapped(one, store.use("one", PID), 0x100_000)])
            store.publish(PID + 1, [mapped(other, store.use("other", PID + 1), 0x200_000)])

            expect_found(kernel, PID, one, 0x100_000, some_addresses(one, 200))
            expect_found(kernel, PID + 1, other, 0x200_000, some_addresses(other, 200))
            assert len(kernel.rules) == len(RESERVED_RULES) + len(set(RSP[:9]))

    def test_rules_without_room_end_the_walk(self) -> None:
        """When the map of rules is full the walk stops there; it does not take another rule."""
        rules = [*RSP[:3], UnwindRule(CfaKind.RBP, 16, rbp=RbpKind.AT_CFA, rbp_offset=-16)]
        table = a_table([4], rules=rules)
        kernel = FakeKernel(rules_max=len(RESERVED_RULES) + 3)
        with store_in(kernel) as store:
            store.add("table", table)
            store.publish(PID, [mapped(table, store.use("table", PID), 0)])
            found = kernel.rules_at(PID, [table.text_start + n * PAGE_BYTES // 4 for n in range(4)])
            assert found == [*RSP[:3], STOP]


class TestMappingLists:
    """The mapping lists of processes."""

    def test_sorted_whatever_the_order(self) -> None:
        """The walker's search needs order, and mappings come in any."""
        table = a_table([3])
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.add("table", table)
            pieces = store.use("table", PID)
            biases = [n * 0x10_000 for n in (5, 1, 4, 2, 3)]
            store.publish(PID, [mapped(table, pieces, bias) for bias in biases])

            assert kernel.mappings_of(PID)["bias"].tolist() == sorted(biases)
            for bias in biases:
                expect_found(kernel, PID, table, bias, some_addresses(table, 20))

    def test_too_many_mappings_are_counted(self) -> None:
        """Mappings beyond the list's end are omitted and counted."""
        table = a_table([3])
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.add("table", table)
            pieces = store.use("table", PID)
            mappings = [mapped(table, pieces, n * 0x10_000) for n in range(MAX_UNWIND_MAPPINGS + 23)]
            assert store.publish(PID, mappings) == 23
            assert len(kernel.mappings_of(PID)) == MAX_UNWIND_MAPPINGS
            last = (MAX_UNWIND_MAPPINGS - 1) * 0x10_000
            expect_found(kernel, PID, table, last, some_addresses(table, 20))

    def test_a_list_is_replaced_as_a_whole(self) -> None:
        """Nothing of the former list is left."""
        table = a_table([3, 3])
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.add("table", table)
            pieces = store.use("table", PID)
            store.publish(PID, [mapped(table, pieces, bias) for bias in (0x10_000, 0x20_000)])
            store.publish(PID, [mapped(table, pieces, 0x30_000)])

            start = table.text_start
            found = kernel.rules_at(PID, [start + 0x10_000, start + 0x20_000, start + 0x30_000])
            assert found == [GAP, GAP, table.lookup(start)]

    def test_an_empty_list(self) -> None:
        """A process whose files have no tables has an empty list."""
        kernel = FakeKernel()
        with store_in(kernel) as store:
            assert store.publish(PID, []) == 0
            assert len(kernel.mappings_of(PID)) == 0
            assert kernel.rules_at(PID, [0x1234]) == [GAP]


class TestRoom:
    """Words are allocated and freed."""

    def test_a_table_stays_while_somebody_uses_it(self) -> None:
        """When the last process releases a table, its words and its shard are freed."""
        table = a_table([23])
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.add("table", table)
            store.add("table", table)
            for pid in (1, 2):
                store.publish(pid, [mapped(table, store.use("table", pid), 0)])
            assert store.words_used == 25

            store.release(1)
            assert store.has("table")
            expect_found(kernel, 2, table, 0, some_addresses(table, 20))

            store.release(2)
            assert not store.has("table")
            assert store.words_used == 0
            assert kernel.shards == set()

    def test_a_process_can_let_go_of_some(self) -> None:
        """Kept tables stay in its list, the others are released."""
        kernel = FakeKernel()
        with store_in(kernel) as store:
            for name in ("kept", "dropped"):
                store.add(name, a_table([23]))
                store.use(name, PID)
            store.publish(PID, [mapped(a_table([23]), store.use("kept", PID), 0)])
            store.release(PID, keep=["kept"])
            assert (store.has("kept"), store.has("dropped")) == (True, False)
            assert kernel.pids == {PID}
            with pytest.raises(KeyError):
                store.use("dropped", PID)

    def test_no_room_leaves_nothing_behind(self, libc_table: UnwindTable) -> None:
        """A table that finds room for some of its pieces only is not there at all; others are untouched."""
        small, large = a_table([23]), repeated(libc_table, 21)
        kernel = FakeKernel(shards_max=2)
        with store_in(kernel) as store:
            store.add("small", small)
            store.publish(PID, [mapped(small, store.use("small", PID), 0)])
            with pytest.raises(StoreFull):
                store.add("large", large)
            assert not store.has("large")
            assert store.words_used == 25
            assert kernel.shards == {0}
            expect_found(kernel, PID, small, 0, some_addresses(small, 50))

    def test_no_memory_is_no_room(self) -> None:
        """If the kernel refuses another shard, all shards count as full."""
        kernel = FakeKernel()
        with store_in(kernel) as store:
            kernel.out_of_memory = True
            with pytest.raises(StoreFull):
                store.add("table", a_table([23]))
            kernel.out_of_memory = False
            store.add("table", a_table([23]))
            assert store.words_used == 25

    @given(
        steps=st.lists(
            st.tuples(st.integers(0, 7), st.integers(1, 120), st.booleans()), min_size=1, max_size=25
        )
    )
    @settings(max_examples=40, deadline=None)
    def test_any_order_of_coming_and_going(self, steps: list[tuple[int, int, bool]]) -> None:
        """Pieces never overlap, lie within shards, and all the room comes back in the end."""
        kernel = FakeKernel(shards_max=3)
        present: dict[int, tuple[UnwindTable, tuple[Piece, ...]]] = {}
        with store_in(kernel) as store:
            for pid, pages, leaves in steps:
                if pid in present:
                    store.release(pid)
                    del present[pid]
                if not leaves:
                    table = a_table([1_024] * pages)
                    try:
                        store.add(f"table of {pid}", table)
                    except StoreFull:
                        continue
                    present[pid] = table, store.use(f"table of {pid}", pid)
                expect_disjoint([piece for _table, pieces in present.values() for piece in pieces])
                assert set(store.tables) == {f"table of {pid}" for pid in present}
            for pid, (table, pieces) in present.items():
                store.publish(pid, [mapped(table, pieces, 0)])
            for pid, (table, _pieces) in present.items():
                expect_found(kernel, pid, table, 0, some_addresses(table, 20))
            for pid in present:
                store.release(pid)
            assert kernel.shards == set()
            assert store.words_used == 0


class TestIdle:
    """Unused tables."""

    def test_one_waits_for_the_next_process_of_its_program(self) -> None:
        """It is there still, and counts as used no more."""
        table = a_table([23])
        kernel = FakeKernel()
        with store_in(kernel, idle_words_max=25) as store:
            store.add("table", table)
            store.publish(1, [mapped(table, store.use("table", 1), 0)])
            store.release(1)
            assert (store.has("table"), store.words_used) == (True, 0)

            store.publish(2, [mapped(table, store.use("table", 2), 0)])
            assert store.words_used == 25
            expect_found(kernel, 2, table, 0, some_addresses(table, 20))

    def test_those_unused_for_longest_make_room_for_others(self) -> None:
        """There is room for two of three released tables."""
        kernel = FakeKernel()
        with store_in(kernel, idle_words_max=50) as store:
            for pid, name in enumerate(("first", "second", "third"), PID):
                store.add(name, a_table([23]))
                store.use(name, pid)
            for pid in (PID + 1, PID, PID + 2):
                store.release(pid)
            assert [store.has(name) for name in ("first", "second", "third")] == [True, False, True]

    def test_they_give_way_to_one_that_is_wanted(self, libc_table: UnwindTable) -> None:
        """All go when a table finds no room; one that is in use stays."""
        used, idle, large = a_table([23]), repeated(libc_table, 9), repeated(libc_table, 12)
        kernel = FakeKernel(shards_max=2)
        with store_in(kernel, idle_words_max=1 << 30) as store:
            store.add("used", used)
            store.publish(PID, [mapped(used, store.use("used", PID), 0)])
            store.add("idle", idle)
            store.use("idle", 23)
            store.release(23)

            store.add("large", large)
            assert [store.has(name) for name in ("used", "idle", "large")] == [True, False, True]
            expect_found(kernel, PID, used, 0, some_addresses(used, 50))


class TestAnotherDaemon:
    """The maps outlive the daemon that filled them."""

    def test_it_goes_on_with_the_tables(self, libc_table: UnwindTable) -> None:
        """Walks find the same, new tables do not overlap old ones, and rules keep their numbers."""
        used, unused, new = repeated(libc_table, 5), a_table([23]), a_table([7, 101], rules=RSP[::-1])
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.add("used", used)
            store.add("unused", unused)
            store.publish(PID, [mapped(used, store.use("used", PID), 0)])
            store.publish(23, [mapped(unused, store.use("unused", 23), 0)])
            words = store.words_used

            later = UnwindStore(kernel.descriptors, slot_of=lambda pid: pid, idle_words_max=0)
            later.restore(store.tables)
            assert (later.words_used, later.tables) == (words, store.tables)
            later.use("used", PID)
            later.drop_unused({PID})
            assert (later.has("used"), later.has("unused")) == (True, False)
            assert kernel.pids == {PID}

            later.add("new", new)
            later.publish(PID + 1, [mapped(new, later.use("new", PID + 1), 0)])
            expect_found(kernel, PID, used, 0, some_addresses(used))
            expect_found(kernel, PID + 1, new, 0, some_addresses(new, 100))
            expect_disjoint(piece for pieces in later.tables.values() for piece in pieces)
            for pid in (PID, PID + 1):
                later.release(pid)
            assert kernel.shards == set()
            later.close()

    def test_what_it_does_not_know_of_is_given_back(self) -> None:
        """Words that were written, and then the daemon was killed."""
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.add("lost", a_table([23]))
            assert not store.is_empty
            later = UnwindStore(kernel.descriptors, slot_of=lambda pid: pid, idle_words_max=0)
            later.restore({})
            assert kernel.shards == set()
            assert later.is_empty
            later.close()

    def test_a_shard_that_is_gone(self) -> None:
        """It was given back, and the daemon was killed before it could write that down."""
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.add("table", a_table([23]))
            tables = store.tables
            store.use("table", PID)
            store.release(PID)
            later = UnwindStore(kernel.descriptors, slot_of=lambda pid: pid, idle_words_max=0)
            later.restore(tables)
            assert not later.has("table")
            later.close()

    def test_whoever_writes_down_is_told(self) -> None:
        """The generation is another one after whatever changes where tables are, and only then."""
        kernel = FakeKernel()
        with store_in(kernel) as store:
            before = store.generation
            store.add("table", a_table([23]))
            added = store.generation
            assert added != before
            store.publish(PID, [mapped(a_table([23]), store.use("table", PID), 0)])
            store.add("table", a_table([23]))
            assert store.generation == added
            store.release(PID)
            assert store.generation != added


def expect_disjoint(pieces: Iterable[Piece]) -> None:
    """No word of a shard belongs to two pieces."""
    ends: dict[int, int] = {}
    for piece in sorted(pieces, key=lambda piece: (piece.shard, piece.first_word)):
        assert piece.first_word >= ends.get(piece.shard, 0)
        ends[piece.shard] = piece.first_word + piece.words
        assert ends[piece.shard] <= UNWIND_SHARD_WORDS


def test_files_of_anybody_leave_room_for_roots():
    """Half of the rules and of the words, however much the others bring along."""
    many = [UnwindRule(CfaKind.RSP, 8 * n) for n in range(1, 200)]
    kernel = FakeKernel(shards_max=4, rules_max=64)
    with store_in(kernel) as store:
        store.add("crowd" + OF_OTHERS, a_table([200], rules=many))
        mine = a_table([23], rules=[UnwindRule(CfaKind.RBP, 8 * n) for n in range(1, 24)])
        store.add("mine", mine)
        store.publish(PID, [mapped(mine, store.use("mine", PID), 0)])
        addresses = some_addresses(mine, 100)
        assert kernel.rules_at(PID, addresses) == [mine.lookup(vaddr) for vaddr in addresses]

        large = repeated(a_table([512]), UNWIND_SHARD_WORDS // 513)
        store.add("large" + OF_OTHERS, large)
        store.use("large" + OF_OTHERS, PID)
        with pytest.raises(StoreFull):
            store.add("larger" + OF_OTHERS, repeated(large, 2))
        store.add("largest", repeated(large, 2))


class TestManagedCode:
    """Ranges with one rule, beside and inside files that have tables."""

    RULE = managed_rule(-16, inner_offset=23, check_offset=51, is_tagged=True)

    def test_a_range_has_its_rule_without_a_table(self) -> None:
        """At its first and last byte, and not around it."""
        kernel = FakeKernel()
        with store_in(kernel) as store:
            store.publish(PID, [], [CodeRange(0x7000, 0x9000, self.RULE)])

            found = kernel.rules_at(PID, [0x6FFF, 0x7000, 0x8FFF, 0x9000])

        assert found == [GAP, self.RULE, self.RULE, GAP]

    def test_a_range_goes_before_the_table_around_it(self) -> None:
        """The rest of the table holds as before."""
        kernel, table = FakeKernel(), a_table([4, 4, 4])
        with store_in(kernel) as store:
            store.add("table", table)
            pieces = store.use("table", PID)
            store.publish(PID, [mapped(table, pieces, 0)], [CodeRange(0x1800, 0x2800, self.RULE)])

            outside = [vaddr for vaddr in some_addresses(table, 200) if not 0x1800 <= vaddr < 0x2800]
            expect_found(kernel, PID, table, 0, outside)
            assert kernel.rules_at(PID, [0x1800, 0x27FF]) == [self.RULE] * 2

    def test_a_rule_for_gaps_holds_only_there(self) -> None:
        """Embedded builtins are where a file says nothing."""
        kernel, table = FakeKernel(), a_table([2], rules=[RSP[0], GAP])
        with store_in(kernel) as store:
            store.add("table", table)
            pieces = store.use("table", PID)
            gaps = CodeRange(0x1000, 0x2000, self.RULE, only_gaps=True)
            store.publish(PID, [mapped(table, pieces, 0)], [gaps])

            assert kernel.rules_at(PID, [0x1000, 0x1800]) == [RSP[0], self.RULE]
