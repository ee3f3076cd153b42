"""Verdicts while a table is full: earlier ones stay, unless the recorded blocks are freed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from bpfleakd.kernel.abi import LIVE_BLOCK, LOSS_REASONS, RecordingState
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import SiteVerdict, Verdict
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.address_space.regions import BLOCK_KINDS
from bpfleakd.tracing.judging.observations import Observations
from bpfleakd.tracing.judging.site_verdicts import SiteVerdicts

from ..doubles import NS_PER_S, Clock, counter_rows

LEAK, OTHER, NEW = (SiteKey(AllocationKind.HEAP, stack) for stack in (7, 8, 9))
MAPPED = SiteKey(AllocationKind.MMAP, 7)
SIZE, MIB = 2300, 1 << 20


class World:
    """A leak of ten blocks a second, and a mapping that grows by one; memory grows by a MiB a second."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.table = SiteTable(self.clock.now_ns)
        self.verdicts = SiteVerdicts()
        self.born_ns: dict[SiteKey, list[int]] = {key: [] for key in (LEAK, OTHER, NEW, MAPPED)}
        self.allocated = dict.fromkeys(self.born_ns, 0)
        self.refused = self.second = self.unrecorded = 0
        self.reason = "live_full"

    def go_on(
        self, seconds: int, *, full: bool = False, refused: int = 10, grows: bool = True, mapped: int = 1
    ) -> None:
        for _ in range(seconds):
            self.clock.go_on(1)
            self.second += 1
            self.bear(MAPPED, mapped)
            self.unrecorded += 1 - mapped
            if not full:
                self.bear(LEAK, 10)
            else:
                # A block in ten gets a place.
                self.bear(LEAK, 1)
                self.refused += refused
            self.read(grows)

    def bear(self, key: SiteKey, count: int) -> None:
        self.born_ns[key] += count * [self.clock.now_ns - NS_PER_S // 2]
        self.allocated[key] += count

    def read(self, grows: bool = True) -> None:
        known = [key for key, allocated in self.allocated.items() if allocated]
        live = [len(self.born_ns[key]) for key in known]
        rows = counter_rows(
            [
                (SIZE * count, count, SIZE * self.allocated[key], self.allocated[key])
                for key, count in zip(known, live, strict=True)
            ]
        )
        self.table.update(self.clock.now_ns, known, rows)
        missed = dict.fromkeys(LOSS_REASONS, 0) | {self.reason: self.refused}
        recorded = sum(self.allocated.values()) - self.allocated[MAPPED]
        counters = ProcessCounters(RecordingState.RECORDING, 0, 0, missed, recorded=recorded)
        observed = self.verdicts.observed
        regions = self.unrecorded, self.allocated[MAPPED]
        observed.note(self.clock.now_ns, counters, self.table.heap_totals, regions)
        self.table.timeline.held_ns = observed.full_since_ns
        if grows:
            self.memory_bytes = 100 * MIB + MIB * self.second
        observed.note_memory(self.clock.now_ns, self.table.began_ns, self.memory_bytes)

    def blocks(self) -> Iterator[np.ndarray]:
        kinds = {kind: BLOCK_KINDS.index(kind) for kind in (AllocationKind.HEAP, AllocationKind.MMAP)}
        for key, born_ns in self.born_ns.items():
            rows = [(SIZE, SIZE, born, key.stack_id, 1, kinds[key.kind]) for born in born_ns]
            yield np.array(rows, LIVE_BLOCK)

    def verdict(self, key: SiteKey) -> SiteVerdict:
        self.verdicts.compute(self.table, self.blocks(), self.clock)
        counters = self.table.counters(key)
        return self.verdicts.of(self.table.row_of(key), counters.live_count, counters.allocated_count)


@pytest.fixture
def world() -> World:
    world = World()
    world.go_on(90)
    return world


@pytest.mark.parametrize("seconds", [5, 120, 1_500, 8_000])
def test_a_leak_that_fills_the_table_stays_one_at_its_rate(world: World, seconds: int) -> None:
    world.go_on(seconds, full=True, refused=9)
    verdict = world.verdict(LEAK)
    assert verdict.verdict is Verdict.LEAK
    assert verdict.leak_bytes_per_s == pytest.approx(10 * SIZE, rel=0.02)
    assert ": the table of live blocks is full" in verdict.reason
    of_process = world.verdicts.of_process(world.table, ())
    assert of_process.leak_bytes_per_s == pytest.approx(11 * SIZE, rel=0.02)


def test_a_full_table_of_threads_is_a_full_table(world: World) -> None:
    """Calls of some threads are not recorded: a leak seems to become slower, and frees are missed."""
    world.reason = "thread_full"
    world.go_on(300, full=True)
    verdict = world.verdict(LEAK)
    assert verdict.verdict is Verdict.LEAK
    assert verdict.leak_bytes_per_s == pytest.approx(10 * SIZE, rel=0.02)
    assert ": the table of threads is full" in verdict.reason
    reason = world.verdicts.of_process(world.table, ()).reason
    assert reason.endswith(": to see more, raise limits.threads")


def test_a_leak_may_go_on_at_the_overflow_site(world: World) -> None:
    """A JIT's code moves, and its new call sites are counted together: silence is no evidence."""
    assert world.verdict(LEAK).verdict is Verdict.LEAK
    world.reason = "site_full"
    for _ in range(200):
        world.clock.go_on(1)
        world.second += 1
        world.bear(OTHER, 10)
        world.refused += 10
        world.read()
    found = world.verdict(LEAK)
    assert found.verdict is Verdict.LEAK
    assert found.reason.endswith("because the table of call sites is full (limits.sites)")
    del world.born_ns[LEAK][20:]
    world.go_on(1)
    assert world.verdict(LEAK).verdict is not Verdict.LEAK


def test_mappings_that_are_not_recorded_are_not_missed(world: World) -> None:
    """The address space is in too many pieces: a leak of mappings stays one."""
    assert world.verdict(MAPPED).verdict is Verdict.LEAK
    world.go_on(200, mapped=0)
    found = world.verdict(MAPPED)
    assert found.verdict is Verdict.LEAK
    assert found.reason.endswith("because the address space is in too many pieces")


def test_the_process_says_what_memory_does_since_and_what_helps(world: World) -> None:
    world.go_on(100, full=True)
    world.verdict(LEAK)
    reason = world.verdicts.of_process(world.table, ()).reason
    assert "; the table of live blocks has been full for 1m40s, memory grows +1.00 MiB/s since" in reason
    assert "--mode sampled" in reason


def test_a_leak_that_may_have_ended(world: World) -> None:
    """It stays a leak, with the known figures of the memory."""
    world.go_on(100, full=True, grows=False)
    assert world.verdict(LEAK).verdict is Verdict.LEAK
    assert "memory does not grow since" in world.verdicts.of_process(world.table, ()).reason


def test_mappings_are_seen_all_the_same(world: World) -> None:
    """They are not blocks: one that stops has stopped."""
    world.go_on(60, full=True)
    found = world.verdict(MAPPED)
    assert found.verdict is Verdict.LEAK
    assert "table" not in found.reason


def test_what_dies_while_the_table_is_full_is_no_leak(world: World) -> None:
    """Frees of recorded blocks are seen."""
    for _ in range(30):
        world.bear(OTHER, 20)
        world.go_on(1)
    world.go_on(60)
    assert world.verdict(LEAK).verdict is Verdict.LEAK
    del world.born_ns[LEAK][20:]
    world.go_on(20, full=True)
    assert world.verdict(LEAK).verdict is not Verdict.LEAK


def test_a_site_that_comes_while_the_table_is_full_is_unknown(world: World) -> None:
    world.go_on(10, full=True)
    for _ in range(60):
        world.bear(NEW, 2)
        world.go_on(1, full=True)
    assert world.verdict(NEW).verdict is Verdict.UNKNOWN


def test_when_there_is_room_again_all_is_judged_by_what_is_seen(world: World) -> None:
    world.go_on(60, full=True)
    assert world.verdicts.observed.full_since_s(world.table) == pytest.approx(90)
    world.go_on(9)
    assert world.verdicts.observed.full_since_s(world.table) is not None
    world.go_on(5)
    assert world.verdicts.observed.full_since_s(world.table) is None
    assert "table" not in world.verdict(LEAK).reason


def test_a_few_refusals_are_no_full_table(world: World) -> None:
    """The kernel had no memory at hand for a moment, or few of many blocks were refused."""
    world.refused += 1_000
    world.go_on(20)
    assert world.verdicts.observed.full_since_s(world.table) is None
    for _ in range(20):
        world.refused += 1
        world.go_on(1)
    assert world.verdicts.observed.full_since_s(world.table) is None


def test_the_next_daemon_knows_since_when(world: World) -> None:
    world.go_on(60, full=True)
    saved = world.verdicts.observed.checkpoint()
    world.verdicts.observed = Observations.restored(saved)
    world.go_on(5, full=True)
    assert world.verdict(LEAK).verdict is Verdict.LEAK
    assert world.verdicts.observed.full_since_s(world.table) == pytest.approx(90)
