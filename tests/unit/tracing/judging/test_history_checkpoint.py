"""Histories that outlive the daemon."""

from __future__ import annotations

import numpy as np
import pytest

from bpfleakd.kernel.abi import LIVE_BLOCK
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import Verdict
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.judging.history_checkpoint import HistoryCheckpoints, restored_history
from bpfleakd.tracing.traced_process import TracedProcess

from ..doubles import Clock, FakeRecord, a_traced, counter_rows

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


def test_a_leak_is_one_before_and_after() -> None:
    """The first verdict after a restart says so, says what was not read, and is less sure."""
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


def test_a_gap_that_is_longer_than_what_was_read() -> None:
    """Then all begins anew: a verdict would be on what nobody saw."""
    world = World()
    world.go_on(30)
    with pytest.raises(ValueError, match="no readings for"):
        world.restart(gap_s=60)


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
    """What was kept before is removed: it would pass for newer than it is."""
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
