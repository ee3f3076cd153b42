"""Blocks of a process that runs, and of one that ended; the kernel is made up."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bpfleakd import errors
from bpfleakd.model.blocks import BlocksReport
from bpfleakd.model.code.stack import NamedStack, RawStack, StackEnd
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.queries.blocks import Blocks, narrowed
from bpfleakd.queries.report import Reporter
from bpfleakd.table.address_map import AddressMap
from bpfleakd.tracing.traced_process import TracedProcess

from ..tracing.doubles import NS_PER_S, FakeMaps, FakeProcess, View, a_traced

PID = 4_711
NOW_NS = 100 * NS_PER_S
PAGE = 4096


def heap(stack_id: int) -> SiteKey:
    return SiteKey(AllocationKind.HEAP, stack_id)


def born(seconds_ago: float) -> int:
    return NOW_NS - round(seconds_ago * NS_PER_S)


class World:
    """Stack n has one frame, address n; blocks are (size, seconds ago, stack, tid), addresses from 0."""

    def __init__(self, *blocks: tuple[int, float, int, int], space: AddressMap | None = None) -> None:
        self.maps = FakeMaps()
        process = self.maps.processes[PID] = FakeProcess()
        process.blocks = [(size, born(ago), stack, tid, 0) for size, ago, stack, tid in blocks]
        process.stacks = {n: RawStack((n,), StackEnd.BOTTOM) for n in range(1, 50)}
        sites: dict[SiteKey, tuple[int, int, int, int]] = {}
        for size, _ago, stack, _tid in blocks:
            live_bytes, live_count, *_ = sites.get(heap(stack), (0, 0))
            sites[heap(stack)] = (live_bytes + size, live_count + 1, live_bytes + size, live_count + 1)
        self.traced: TracedProcess = a_traced(sites, now_ns=NOW_NS)
        self.traced.thread_names = {7: "main"}
        self.space = space
        if space is not None:
            self.traced.table.update(NOW_NS, *space.counters())
        self.same_fingerprint: set[SiteKey] = set()

    def report(self, **options: object) -> BlocksReport:
        wanted = {"site": None, "older_than_s": 0.0, "limit": 1_000, **options}
        view = View(self.traced, self.maps, self.space, self._name)
        blocks = Blocks(view, NOW_NS)  # type: ignore[arg-type]
        return blocks.report(Reporter(10, "session").summary(self.traced, NOW_NS), **wanted)  # type: ignore[arg-type]

    def fingerprint(self, key: SiteKey) -> str:
        return self._name([key])[key].fingerprint

    def _name(self, keys: Iterable[SiteKey]) -> dict[SiteKey, NamedStack]:
        named = self.traced.named_stacks(self.maps, keys, NOW_NS)  # type: ignore[arg-type]
        return {
            key: NamedStack(one.stack, "same", True) if key in self.same_fingerprint else one
            for key, one in named.items()
        }


def addresses(report: BlocksReport) -> list[list[int]]:
    return [[block.address for block in site.blocks] for site in report.sites]


class TestLive:
    """While the process runs."""

    def test_all_of_a_block(self) -> None:
        """Address, size, age, and the thread with its name if it still has one."""
        report = World((23, 7.5, 1, 7), (101, 3, 1, 9)).report()
        (site,) = report.sites
        first, second = site.blocks
        assert (first.address, first.size_bytes, first.age_s, first.tid, first.comm) == (
            0,
            23,
            7.5,
            7,
            "main",
        )
        assert (second.address, second.age_s, second.comm) == (1, 3.0, "")
        assert (site.live_bytes, site.live_count, site.left_out_count) == (124, 2, 0)
        assert (site.kind, site.truncated) == (AllocationKind.HEAP, None)
        assert site.caller == site.stack[0]
        assert (report.live_bytes, report.live_count, report.process.pid) == (124, 2, PID)

    def test_largest_site_and_oldest_block_first(self) -> None:
        """As one reads a report."""
        world = World((1, 1, 1, 7), (50, 2, 2, 7), (50, 9, 2, 7), (1, 5, 1, 7))
        assert addresses(world.report()) == [[2, 1], [3, 0]]

    def test_what_is_not_listed_is_said(self) -> None:
        """By site and in all."""
        world = World(*[(10, n, 1, 7) for n in range(8)], (1, 1, 2, 7), (5, 1, 3, 7))
        report = world.report(limit=2)
        assert (report.live_count, report.left_out_count, report.left_out_sites) == (10, 8, 1)
        assert [(len(site.blocks), site.left_out_count) for site in report.sites] == [(1, 7), (1, 0)]

    def test_only_old_ones(self) -> None:
        """The sums cover only the old ones, too."""
        world = World((23, 59.9, 1, 7), (101, 60, 1, 7), (1000, 61, 2, 7), (1, 0, 3, 7))
        report = world.report(older_than_s=60.0)
        assert addresses(report) == [[2], [1]]
        assert (report.live_bytes, report.live_count, report.older_than_s) == (1101, 2, 60.0)

    def test_blocks_born_while_it_is_made(self) -> None:
        """No block has age -1."""
        (site,) = World((23, -1, 1, 7)).report().sites
        assert site.blocks[0].age_s == 0.0

    def test_one_site(self) -> None:
        """By its fingerprint; another one's blocks are nowhere."""
        world = World((23, 1, 1, 7), (101, 1, 2, 7))
        report = world.report(site=world.fingerprint(heap(1)))
        assert (addresses(report), report.live_bytes) == ([[0]], 23)

    def test_a_site_that_is_not_there(self) -> None:
        """It is an error: a misspelt fingerprint must not look like a site without blocks."""
        with pytest.raises(errors.NoSuchSite, match="no call site 0123456789abcdef"):
            World((23, 1, 1, 7)).report(site="0123456789abcdef")

    def test_a_site_without_blocks(self) -> None:
        """It is there, and has none."""
        world = World((23, 1, 1, 7))
        world.maps.processes[PID].blocks = []
        report = world.report(site=world.fingerprint(heap(1)))
        assert (report.sites, report.live_count, report.left_out_count) == ((), 0, 0)

    def test_stacks_with_one_fingerprint_are_one_site(self) -> None:
        """Their blocks are in one list, by age."""
        world = World((10, 1, 1, 7), (10, 3, 2, 7), (10, 2, 1, 7), (1, 1, 3, 7))
        world.same_fingerprint = {heap(1), heap(2)}
        first, _second = world.report().sites
        assert [block.address for block in first.blocks] == [1, 2, 0]
        assert (first.site, first.live_bytes, first.live_count) == ("same", 30, 3)
        assert addresses(world.report(site="same")) == [[1, 2, 0]]

    def test_a_wrapper_is_not_the_caller(self) -> None:
        """Another stack through it has given back all that it got."""
        world = World((23, 1, 1, 7))
        stacks = world.maps.processes[PID].stacks
        stacks[1] = RawStack((10, 20, 31, 40), StackEnd.BOTTOM)
        (site,) = world.report().sites
        assert site.caller is not None
        assert site.caller.function == "function_10"
        stacks[2] = RawStack((10, 20, 32, 40), StackEnd.BOTTOM)
        world.traced.table.update(NOW_NS, [heap(2)], a_traced({heap(2): (0, 0, 99, 9)}).table.columns())
        (site,) = world.report().sites
        assert site.caller is not None
        assert site.caller.function == "function_31"

    def test_a_site_that_mostly_gives_back_has_its_own_caller(self) -> None:
        """Its own stack alone would blame no function."""
        world = World((23, 1, 1, 7))
        world.traced.table.update(NOW_NS, [heap(1)], a_traced({heap(1): (23, 1, 999, 99)}).table.columns())
        (site,) = world.report().sites
        assert site.caller == site.stack[0]


class TestRegions:
    """Mappings are blocks, too."""

    @pytest.fixture
    def space(self) -> AddressMap:
        space = AddressMap()
        space.mapped(0x10000, 4 * PAGE, SiteKey(AllocationKind.MMAP, 5), born(10), 7)
        space.unmapped(0x11000, PAGE)
        space.mapped(0x20000, 8 * PAGE, SiteKey(AllocationKind.FILE, 6), born(20), 7)
        space.mapped(0x30000, PAGE, SiteKey(AllocationKind.COMMIT, 5), born(5), 9)
        return space

    def test_beside_the_heap(self, space: AddressMap) -> None:
        """The rest of each kind, without files; one stack may belong to sites of two kinds."""
        report = World((23, 1, 1, 7), space=space).report()
        assert [(site.kind.value, site.live_bytes) for site in report.sites] == [
            ("mmap", 3 * PAGE),
            ("commit", PAGE),
            ("heap", 23),
        ]
        first = [(block.address, block.size_bytes, block.age_s) for block in report.sites[0].blocks]
        assert first == [(0x10000, PAGE, 10.0), (0x12000, 2 * PAGE, 10.0)]

    def test_files_if_they_are_asked_for(self, space: AddressMap) -> None:
        """By the fingerprint of their site, and nothing else of the same stack."""
        world = World((23, 1, 1, 7), space=space)
        assert world.report(site=world.fingerprint(SiteKey(AllocationKind.FILE, 6))).live_bytes == 8 * PAGE
        assert world.report(site=world.fingerprint(SiteKey(AllocationKind.COMMIT, 5))).live_bytes == PAGE

    def test_old_ones(self, space: AddressMap) -> None:
        """By when they were mapped."""
        report = World((23, 1, 1, 7), space=space).report(older_than_s=8.0)
        assert [site.kind.value for site in report.sites] == ["mmap"]


class TestKept:
    """The report that is kept when a process ends."""

    def test_the_largest_sites(self) -> None:
        """Sums cover everything, and omissions are stated."""
        world = World(*[(n, 1, n, 7) for n in range(1, 11)] * 2)
        report = world.report(limit=10, largest_sites=3)
        assert [site.live_bytes for site in report.sites] == [20, 18, 16]
        assert (report.live_bytes, report.live_count) == (110, 20)
        assert (report.left_out_sites, report.left_out_count) == (7, 14)
        again = narrowed(report, site=None, older_than_s=0.0, limit=10)
        assert again == report

    def test_narrowed_to_fewer_blocks(self) -> None:
        """The same as a request for fewer blocks."""
        world = World(*[(10, n, 1, 7) for n in range(8)], (1, 1, 2, 7))
        kept = world.report(limit=100, largest_sites=100)
        short = narrowed(kept, site=None, older_than_s=0.0, limit=4)
        assert short.sites == world.report(limit=4).sites
        assert (short.live_count, short.left_out_count) == (9, 5)

    def test_narrowed_to_a_site(self) -> None:
        """One that was kept; another one is an error."""
        world = World((23, 1, 1, 7), (101, 1, 2, 7), (5, 1, 3, 7))
        kept = world.report(largest_sites=2)
        report = narrowed(kept, site=world.fingerprint(heap(1)), older_than_s=0.0, limit=10)
        assert (addresses(report), report.live_bytes, report.left_out_sites) == ([[0]], 23, 0)
        with pytest.raises(errors.NoSuchSite):
            narrowed(kept, site=world.fingerprint(heap(3)), older_than_s=0.0, limit=10)

    def test_narrowed_to_old_ones(self) -> None:
        """Exact, as long as one kept block is too young: the omitted blocks of a site are younger still."""
        world = World(*[(10, n, 1, 7) for n in range(8)], (100, 1, 2, 7))
        kept = world.report(limit=5, largest_sites=2)
        assert [len(site.blocks) for site in kept.sites] == [1, 4]
        report = narrowed(kept, site=None, older_than_s=6.0, limit=10)
        assert addresses(report) == [[7, 6]]
        assert (report.live_bytes, report.live_count, report.left_out_count) == (20, 2, 0)
        assert narrowed(kept, site=None, older_than_s=60.0, limit=10).sites == ()

    def test_narrowed_to_old_ones_that_were_not_all_kept(self) -> None:
        """All kept blocks are old enough, so the rest may be, too; the omission is stated."""
        world = World(*[(10, n, 1, 7) for n in range(8)])
        report = narrowed(world.report(limit=5, largest_sites=1), site=None, older_than_s=3.0, limit=10)
        assert addresses(report) == [[7, 6, 5, 4, 3]]
        assert (report.live_count, report.left_out_count) == (8, 3)
