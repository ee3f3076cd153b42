"""Histories that outlive the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from bpfleakd.kernel.abi import LIVE_BLOCK
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import Verdict
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.judging.history_checkpoint import HistoryCheckpoints, restored_history
from bpfleakd.tracing.traced_process import TracedProcess

from ..doubles import Clock, FakeRecord, a_traced, an_attachment, counter_rows

S = 1_000_000_000


class World:
    """A process that leaks a block of 1,000 bytes a second at each of its sites, and the record of it."""

    def __init__(self, sites: int = 3) -> None:
        self.clock = Clock()
        self.sites = [SiteKey(AllocationKind.HEAP, 23 + number) for number in range(sites)]
        self.traced: TracedProcess = a_traced()
        self.traced.table = SiteTable(self.clock())
        self.began_ns = self.clock()
        self.keeper = HistoryCheckpoints(self.clock)

    @property
    def record(self) -> FakeRecord:
        return self.traced.attachment.pins.record("history")  # type: ignore[return-value]

    @property
    def text(self) -> bytes | None:
        return self.record.read()

    def go_on(self, seconds: int, *, keep: bool = True) -> None:
        for _ in range(seconds):
            self.clock.go_on(1)
            passed_s = (self.clock() - self.began_ns) // S
            rows = counter_rows([(1_000 * passed_s, passed_s, 1_000 * passed_s, passed_s)] * len(self.sites))
            self.traced.table.update(self.clock(), self.sites, rows)
            if keep:
                self.keeper.keep(self.traced)

    def blocks(self) -> np.ndarray:
        born_ns = range(self.began_ns + S, self.clock() + 1, S)
        rows = [(1_000, 1_000, born, key.stack_id, 1, 0) for born in born_ns for key in self.sites]
        return np.array(rows, LIVE_BLOCK)

    def announced(self) -> list[int]:
        return self.traced.verdicts.compute(self.traced.table, [self.blocks()], self.clock)

    def verdicts(self) -> list[Verdict]:
        self.announced()
        table = self.traced.table
        counters = [table.counters(key) for key in table.keys]
        found = [
            self.traced.verdicts.of(row, site.live_count, site.allocated_count)
            for row, site in enumerate(counters)
        ]
        return [verdict.verdict for verdict in found]

    def restart(self, gap_s: int) -> None:
        self.keeper.forget(self.traced.pid)
        self.clock.go_on(gap_s)
        self.traced.table, self.traced.verdicts, _identities = restored_history(
            self.record, 45.0, self.clock()
        )


def test_it_is_written_now_and_then() -> None:
    """After two seconds, then every ten, and when the daemon leaves."""
    world = World()
    texts = []
    for _ in range(35):
        world.go_on(1)
        texts.append(world.text)
    assert len(set(texts)) == 1 + 4
    world.keeper.keep(world.traced, now=True)
    assert world.text != texts[-1]


@pytest.mark.parametrize(("processes", "written"), [(1, 24), (2, 10)])
def test_many_histories_are_written_less_often(processes: int, written: int) -> None:
    """If writing takes 50 ms: one every ten seconds, two every 25 s each."""
    world = World()
    clock = Clock()

    def slow_clock() -> int:
        clock.go_on(0.05)
        return clock()

    keeper = HistoryCheckpoints(slow_clock)
    traced = []
    for pid in range(1, processes + 1):
        one = a_traced(dict.fromkeys(world.sites, (1, 1, 1, 1)))
        one.attachment = an_attachment(pid)
        traced.append(one)
    texts: list[bytes | None] = []
    for _ in range(240):
        clock.go_on(0.9)
        for one in traced:
            # The record has its time.
            one.table.update(clock(), world.sites, counter_rows([(clock(), 1, clock(), 1)] * 3))
            keeper.keep(one)
        texts.append(traced[0].attachment.pins.record("history").read())  # type: ignore[attr-defined]
    assert len({*texts} - {None}) == pytest.approx(written, abs=2)


def test_a_leak_is_one_before_and_after() -> None:
    """The first verdict after a restart mentions the gap, and is less sure."""
    world = World()
    world.go_on(100)
    assert world.verdicts() == [Verdict.LEAK] * 3
    before = world.traced.verdicts.of(0, 100, 100)
    world.restart(gap_s=20)
    world.go_on(2)
    assert world.verdicts() == [Verdict.LEAK] * 3
    after = world.traced.verdicts.of(0, 120, 120)
    assert "not read for" in after.reason
    assert "not read" not in before.reason
    assert after.confidence < before.confidence


def test_what_was_announced_is_not_announced_again() -> None:
    """By the next daemon."""
    world = World()
    world.go_on(100)
    announced = [world.announced() for _ in range(3)]
    assert announced == [[], [0, 1, 2], []]
    world.keeper.keep(world.traced, now=True)
    world.restart(gap_s=1)
    world.go_on(2)
    assert [world.announced() for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize(("lives_s", "gap_s"), [((30, 5), 60), ((6, 6, 6, 6), 20), ((12, 3), 300)])
def test_gaps_that_are_longer_than_what_was_read(lives_s: tuple[int, ...], gap_s: int) -> None:
    """The blocks show that it went on leaking, and when."""
    world = World()
    for life_s in lives_s[:-1]:
        world.go_on(life_s)
        world.restart(gap_s)
    world.go_on(lives_s[-1])
    assert world.verdicts() == [Verdict.LEAK] * 3
    assert "not read for" in world.traced.verdicts.of(0, 120, 120).reason


def _verdict_after_gap(
    read: Callable[[int], tuple[int, int]], born_s: Callable[[int], Iterable[int]]
) -> Verdict:
    """For a site of blocks of 10,000 bytes: live and allocated ones by second, and the births of the live."""
    world = World(sites=1)

    def go_on() -> None:
        for _ in range(20):
            world.clock.go_on(1)
            live, allocated = read((world.clock() - world.began_ns) // S)
            rows = counter_rows([(10_000 * live, live, 10_000 * allocated, allocated)])
            world.traced.table.update(world.clock(), world.sites, rows)
            world.keeper.keep(world.traced)

    go_on()
    world.keeper.keep(world.traced, now=True)
    world.restart(gap_s=100)
    go_on()
    now_s = (world.clock() - world.began_ns) // S
    rows = [(10_000, 10_000, world.began_ns + born * S, 23, 1, 0) for born in born_s(now_s)]
    assert len(rows) == read(now_s)[0]
    world.traced.verdicts.compute(world.traced.table, [np.array(rows, LIVE_BLOCK)], world.clock)
    return world.traced.verdicts.of(0, *read(now_s)).verdict


def test_a_jump_within_a_gap_is_no_leak() -> None:
    """All blocks of the gap were born in one second of it, besides a few before and after."""
    few = (1, 5, 8, 12, 16, 125, 130, 135)

    def read(second: int) -> tuple[int, int]:
        count = sum(born <= second for born in few) + (500 if second >= 70 else 0)
        return count, count

    def born_s(now_s: int) -> Iterable[int]:
        return [*few, *[70] * 500]

    assert _verdict_after_gap(read, born_s) is not Verdict.LEAK


@pytest.mark.parametrize("life_s", [3, 15])
def test_what_comes_and_goes_within_a_gap_is_no_leak(life_s: int) -> None:
    """A constant number of blocks, of which those of now were born in the last seconds."""

    def read(second: int) -> tuple[int, int]:
        return 100 * min(second, life_s), 100 * second

    def born_s(now_s: int) -> Iterable[int]:
        return [born for born in range(now_s - life_s + 1, now_s + 1) for _ in range(100)]

    assert _verdict_after_gap(read, born_s) in (Verdict.CHURN, Verdict.PLATEAU)


def test_a_queue_that_is_longer_at_each_reading_is_no_leak() -> None:
    """It fills for 47 s and is emptied: by chance its readings rise, but the blocks are young."""

    def read(second: int) -> tuple[int, int]:
        return 10 * (second % 47), 10 * second

    def born_s(now_s: int) -> Iterable[int]:
        return [born for born in range(now_s - now_s % 47 + 1, now_s + 1) for _ in range(10)]

    assert _verdict_after_gap(read, born_s) is not Verdict.LEAK


def test_a_leak_among_blocks_that_come_and_go() -> None:
    """Two of a hundred blocks a second stay; the gap does not hide them."""

    def read(second: int) -> tuple[int, int]:
        return 98 * min(second, 3) + 2 * second, 100 * second

    def born_s(now_s: int) -> Iterable[int]:
        young = [born for born in range(now_s - 2, now_s + 1) for _ in range(98)]
        return young + [born for born in range(1, now_s + 1) for _ in range(2)]

    assert _verdict_after_gap(read, born_s) is Verdict.LEAK


def test_many_sites_do_not_take_more_room() -> None:
    """Those that are kept are the largest."""
    few, many = World(sites=500), World(sites=20_000)
    for world in (few, many):
        world.go_on(70, keep=False)
        world.keeper.keep(world.traced, now=True)
    assert many.text is not None
    assert few.text is not None
    assert len(many.text) < 2 * len(few.text)
    many.restart(gap_s=1)
    assert 500 <= len(many.traced.table) <= 1_100


def test_a_kernel_without_room() -> None:
    """The earlier record is removed, because it would seem newer than it is."""
    world = World()
    world.go_on(15)
    assert world.text is not None

    def refuse(_text: bytes) -> None:
        raise OSError(12, "no memory")

    world.record.write = refuse  # type: ignore[method-assign]
    world.go_on(15)
    assert world.text is None


def test_nothing_is_kept_of_a_process_that_is_gone() -> None:
    """Nor of one that was not read yet."""
    world = World()
    world.keeper.keep(world.traced, now=True)
    assert world.text is None
    with pytest.raises(ValueError, match="no record"):
        restored_history(world.record, 45.0, world.clock())
