"""A second window continues with the leaks of the first one."""

from __future__ import annotations

import pytest

from bpfleakd.model.process import ProcessId
from bpfleakd.model.site import AllocationKind
from bpfleakd.model.verdict import SiteVerdict, Verdict
from bpfleakd.tracing.judging.earlier_leaks import EarlierLeaks, KnownSite
from bpfleakd.tracing.site_charging import SiteIdentity
from bpfleakd.verdicts.seen_leaks import SeenLeak

from .test_site_verdicts import CHURN, LEAK, World

IDENTITIES = {LEAK: SiteIdentity("abc", "shop", "forget"), CHURN: SiteIdentity("def", "shop", "use")}
A_PROCESS = ProcessId(4711, 17)


def judged(world: World) -> SiteVerdict:
    """The current verdict on the leaking site."""
    world.verdicts.recall(world.table, IDENTITIES)
    world.compute()
    counters = world.table.counters(LEAK)
    return world.verdicts.of(0, counters.live_count, counters.allocated_count)


@pytest.fixture
def first_window() -> dict[KnownSite, SeenLeak]:
    """The result of a window of 70 s: a leak, by its fingerprint."""
    world = World()
    world.go_on(70)
    world.compute()
    return world.verdicts.known_leaks(world.table, IDENTITIES)


def test_what_leaked_is_known_by_what_lasts(first_window: dict[KnownSite, SeenLeak]) -> None:
    """With its rate; what does not leak is not kept."""
    assert set(first_window) == {(AllocationKind.HEAP, "abc")}
    assert first_window[AllocationKind.HEAP, "abc"].rate_bytes_per_s == pytest.approx(2300, rel=0.1)


def test_it_leaks_from_the_beginning_of_the_second(first_window: dict[KnownSite, SeenLeak]) -> None:
    """Until it is found again by itself; it is not announced again."""
    second = World()
    second.verdicts.go_on_with(first_window)
    announced = []
    for _ in range(14):
        second.go_on(5)
        second.verdicts.recall(second.table, IDENTITIES)
        announced += second.compute()
        verdict = judged(second)
        assert verdict.verdict is Verdict.LEAK
        assert verdict.leak_bytes_per_s == pytest.approx(2300, rel=0.15)
    assert "earlier window" not in verdict.reason
    assert announced == []
    # A third one would go on with that.
    assert second.verdicts.known_leaks(second.table, IDENTITIES).keys() == first_window.keys()


def test_a_window_without_an_earlier_one_knows_nothing() -> None:
    """The same without earlier leaks: there is no leak for 45 s."""
    alone = World()
    alone.go_on(40)
    assert judged(alone).verdict is not Verdict.LEAK


def test_what_does_not_grow_any_more_leaks_no_more(first_window: dict[KnownSite, SeenLeak]) -> None:
    """It gained some blocks, and then none for longer than it should have."""
    second = World()
    second.verdicts.go_on_with(first_window)
    second.go_on(3)
    assert judged(second).verdict is Verdict.LEAK
    for _ in range(40):
        second.clock.go_on(1)
        second.table.update(second.clock.now_ns, [], second.table.columns()[:0])
    assert judged(second).verdict is not Verdict.LEAK


def test_processes_are_told_apart_and_taken_once(first_window: dict[KnownSite, SeenLeak]) -> None:
    """A reused pid is another process; a process detached without a leak has none."""
    earlier = EarlierLeaks()
    earlier.keep(A_PROCESS, first_window)
    assert earlier.take(ProcessId(4711, 18)) == {}
    assert earlier.take(A_PROCESS) == first_window
    assert earlier.take(A_PROCESS) == {}
    earlier.keep(A_PROCESS, first_window)
    earlier.keep(A_PROCESS, {})
    assert earlier.take(A_PROCESS) == {}
