"""The guard of tracing cost and the daemon's memory, with simulated figures."""

from __future__ import annotations

import errno

import pytest

from bpfleakd.model.code.probe import ProbeCost
from bpfleakd.supervision.budget import CONSERVATIVE_COST, BudgetLimits, Usage
from bpfleakd.supervision.overhead_guard import MemoryCap, OverheadGuard
from bpfleakd.supervision.tracing_control import Guarded

from ..samples import a_traced_process

NS_PER_S = 1_000_000_000
LEVELS = 3


class World:
    """An overhead guard; `hits_per_s` is the rate of each traced process, at each level."""

    def __init__(self) -> None:
        self.hits_per_s: dict[int, tuple[int, ...]] = {}
        self.manual: set[int] = set()
        self.sites: dict[int, int] = {}
        self.levels: dict[int, int] = {}
        self.reasons: dict[int, str] = {}
        self.given_up: dict[int, str] = {}
        self.sheds = 0
        self.resident_bytes = 10
        self.price: ProbeCost | OSError = ProbeCost(1_000.0, 0.0)
        self.priced = 0
        self.guard = OverheadGuard(
            self,
            BudgetLimits(process_percent=10.0, host_percent=100.0),
            MemoryCap(100 << 20),
            levels=LEVELS,
            resident_bytes=lambda: self.resident_bytes,
            measure_price=self._measure,
        )
        self._now_s = 0
        self._hits: dict[int, int] = {}

    def _measure(self) -> ProbeCost:
        self.priced += 1
        if isinstance(self.price, OSError):
            raise self.price
        return self.price

    def guarded(self) -> list[Guarded]:
        return [
            Guarded(pid, Usage(self._hits.get(pid, 0), 0, pid in self.manual), self.sites.get(pid, 0))
            for pid in self.hits_per_s
        ]

    def set_level(self, pid: int, level: int, reason: str) -> None:
        self.levels[pid], self.reasons[pid] = level, reason

    def evict(self, pid: int, reason: str, now_ns: int) -> None:
        assert now_ns == self._now_s * NS_PER_S
        del self.hits_per_s[pid]
        self.given_up[pid] = reason

    def drop_caches(self) -> None:
        self.sheds += 1

    def go_on(self, seconds: int) -> None:
        for _second in range(seconds):
            self._now_s += 1
            for pid, rates in self.hits_per_s.items():
                self._hits[pid] = self._hits.get(pid, 0) + rates[self.levels.get(pid, 0)]
            self.guard.tick(self._now_s * NS_PER_S)


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_too_dear_is_recorded_more_sparsely(world):
    """And `ps` shows it, with the current cost."""
    world.hits_per_s = {1: (200_000, 50_000), 2: (50_000,)}
    world.go_on(10)
    assert world.levels == {1: 1}
    first, second = world.guard.annotated([a_traced_process(1), a_traced_process(2)])
    assert (first.load_percent, second.load_percent) == (5.0, 5.0)
    assert world.reasons[1] == "tracing costs 20% of a core: over its budget of 10%"
    assert (first.limited, second.limited) == ("", "")
    stats = world.guard.stats()
    assert (stats.hit_ns, stats.host_load_percent, stats.cheaper_total) == (1_000.0, pytest.approx(10.0), 1)


def test_what_is_too_dear_all_the_same_is_let_go_of(world):
    """The reason stays while its last report is shown."""
    world.hits_per_s = {1: (200_000, 150_000)}
    world.go_on(20)
    assert "over its budget" in world.given_up[1]
    assert world.guard.annotated([a_traced_process(1)])[0].limited == world.given_up[1]
    assert world.guard.stats().evicted_total == 1
    world.guard.annotated([])
    assert world.guard.annotated([a_traced_process(1)])[0].limited == ""


def test_what_was_attached_by_hand_is_not_let_go_of(world):
    """Its price is shown."""
    world.hits_per_s = {1: (900_000,)}
    world.manual = {1}
    world.go_on(20)
    assert (world.levels, world.given_up) == ({}, {})
    assert world.guard.annotated([a_traced_process(1)])[0].load_percent == pytest.approx(90.0)


def test_the_price_is_measured_once_and_only_if_it_is_needed(world):
    """A host where nothing grows pays nothing."""
    world.go_on(5)
    assert world.priced == 0
    world.hits_per_s = {1: (1,)}
    world.go_on(5)
    assert world.priced == 1


def test_a_price_that_cannot_be_measured_is_taken_to_be_high(world):
    """And is not tried again at each tick."""
    world.price = OSError(errno.EINVAL, "Invalid argument")
    world.hits_per_s = {1: (1,)}
    world.go_on(5)
    assert world.priced == 1
    assert world.guard.stats().hit_ns == CONSERVATIVE_COST.hit_ns


def test_too_much_memory_costs_the_caches_and_then_the_largest_process(world):
    """Including a manually attached one: the host comes first."""
    world.hits_per_s = {1: (1,), 2: (1,), 3: (1,)}
    world.sites, world.manual = {1: 10, 2: 90_000, 3: 500}, {2}
    world.resident_bytes = 200 << 20
    world.go_on(1)
    assert (world.sheds, world.given_up) == (1, {})
    world.go_on(5)
    assert world.given_up.keys() == {2}
    assert "200 MiB exceeds its 100 MiB limit" in world.given_up[2]
    world.resident_bytes = 90 << 20
    world.go_on(100)
    assert (world.sheds, world.given_up.keys()) == (1, {2})


def test_too_much_memory_with_nothing_traced_ends_with_the_caches(world):
    """There is no process to detach."""
    world.resident_bytes = 200 << 20
    world.go_on(30)
    assert (world.sheds, world.given_up) == (1, {})
