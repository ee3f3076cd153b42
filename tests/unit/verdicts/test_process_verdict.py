"""Verdicts on whole processes, from made-up memory."""

from __future__ import annotations

import numpy as np
import pytest

from bpfleakd.model.limit import MemoryLimit, MemoryLimitKind
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.verdicts.process_verdict import FoundGrowth, classify_process

MIB = 1 << 20
NOTHING = FoundGrowth(0, 0.0, 0.0)
LIMIT = MemoryLimit(MemoryLimitKind.CGROUP, 512 * MIB, 412 * MIB)


def judged(
    per_s: float, found: FoundGrowth = NOTHING, *, seconds: int = 120, limits: tuple[MemoryLimit, ...] = ()
) -> ProcessVerdict:
    """A process with 100 MiB and some noise that gains this much."""
    times_s = np.arange(1.0, seconds + 1)
    noise = np.random.default_rng(23).uniform(0, MIB, seconds)
    return classify_process(times_s, 100 * MIB + per_s * times_s + noise, found, limits)


def test_a_leak_that_explains_the_growth() -> None:
    """The rate has an interval around it, and the share is what its sites gain of it."""
    verdict = judged(MIB, FoundGrowth(2, 0.9 * MIB, 0.0))
    assert verdict.verdict is Verdict.LEAK
    assert verdict.memory_bytes_per_s == pytest.approx(MIB, rel=0.05)
    assert verdict.memory_bytes_per_s_low < MIB < verdict.memory_bytes_per_s_high
    assert verdict.explained_share == pytest.approx(0.9, abs=0.05)
    assert verdict.reason.startswith("2 call sites leak +922 KiB/s; memory grows +1.0")


def test_growth_of_no_site_that_grows() -> None:
    """It is reported, but is not a leak: nothing is claimed about uncounted sites."""
    verdict = judged(MIB, FoundGrowth(0, 0.0, 0.1 * MIB))
    assert verdict.verdict is Verdict.GROWING
    assert verdict.reason.endswith("90% of that is outside the call sites that leak or grow")


def test_a_leak_that_does_not_show_in_the_memory() -> None:
    """64 bytes a second fit into the heap's free memory."""
    verdict = judged(0, FoundGrowth(1, 64.0, 0.0))
    assert verdict.verdict is Verdict.LEAK
    assert verdict.explained_share is None
    assert verdict.reason == "1 call site leaks +64 B/s; the memory of the process does not grow yet"


def test_nothing_grows() -> None:
    """Noise alone is steady, for whatever seed of it."""
    assert judged(0).verdict is Verdict.STEADY
    assert judged(-MIB / 10).verdict is Verdict.STEADY


def course(*parts: tuple[int, float]) -> ProcessVerdict:
    """100 MiB and some noise, which gain so much a second for so many seconds, one after the other."""
    gains = np.concatenate([np.full(seconds, per_s) for seconds, per_s in parts])
    noise = np.random.default_rng(23).uniform(0, 64 << 10, len(gains))
    times_s = np.arange(1.0, len(gains) + 1)
    return classify_process(times_s, 100 * MIB + np.cumsum(gains) + noise, NOTHING, ())


@pytest.mark.parametrize(("before_s", "after_s"), [(60, 25), (120, 25), (600, 40), (3_600, 180)])
def test_growth_that_has_ended_is_none(before_s: int, after_s: int) -> None:
    """However long it lasted: a twelfth of that is enough."""
    verdict = course((before_s, MIB / 10), (after_s, 0.0))
    assert verdict.verdict is Verdict.STEADY
    assert verdict.reason.endswith("the memory of the process does not grow")


@pytest.mark.parametrize(("before", "now"), [(MIB, MIB / 4), (MIB / 4, MIB), (0.0, MIB), (-MIB / 10, MIB)])
def test_the_rate_is_the_current_one(before: float, now: float) -> None:
    """Growth that became slower or faster counts from then on."""
    verdict = course((240, before), (90, now))
    assert verdict.verdict is Verdict.GROWING
    assert verdict.memory_bytes_per_s == pytest.approx(now, rel=0.1)


def test_growth_in_steps_goes_on_between_them() -> None:
    """An allocator takes a MiB every eight seconds."""
    times_s = np.arange(1.0, 181)
    for seconds in range(60, 181, 4):
        memory = 100 * MIB + MIB * (times_s[:seconds] // 8)
        verdict = classify_process(times_s[:seconds], memory, NOTHING, ())
        assert verdict.verdict is Verdict.GROWING
        assert verdict.memory_bytes_per_s == pytest.approx(MIB / 8, rel=0.15)


def test_too_short() -> None:
    """A few seconds tell nothing, unless call sites do."""
    assert judged(MIB, seconds=8).verdict is Verdict.UNKNOWN
    assert classify_process(np.zeros(0), np.zeros(0), NOTHING, ()).memory_bytes_per_s is None


def test_time_until_the_limit() -> None:
    """100 MiB of room at 1 MiB/s last for 100 s; without growth nothing is to be foreseen."""
    host = MemoryLimit(MemoryLimitKind.HOST, 1 << 40, 1 << 38)
    verdict = judged(MIB, limits=(host, LIMIT))
    assert verdict.limit == LIMIT
    assert verdict.limit_reached_s == pytest.approx(100, rel=0.05)
    assert judged(0, limits=(LIMIT,)).limit_reached_s is None
    full = MemoryLimit(MemoryLimitKind.CGROUP, 1, 2)
    assert judged(MIB, limits=(full,)).limit_reached_s == 0


def test_false_alarms_are_rare() -> None:
    """Of 300 processes whose memory only fluctuates, hardly any grows."""
    random = np.random.default_rng(23)
    times_s = np.arange(1.0, 121)
    verdicts = [
        classify_process(times_s, 100 * MIB + random.exponential(5 * MIB, 120), NOTHING, ()).verdict
        for _ in range(300)
    ]
    assert verdicts.count(Verdict.GROWING) <= 6


def test_room_for_garbage_explains_growth() -> None:
    """A heap twice as large as its live objects grows twice as fast as the leak."""
    without = judged(2 * MIB, FoundGrowth(1, 0.9 * MIB, 0.0))
    assert "outside the call sites that leak or grow" in without.reason
    verdict = judged(2 * MIB, FoundGrowth(1, 0.9 * MIB, 0.0, garbage_bytes_per_s=0.9 * MIB))
    assert (verdict.explained_share, verdict.leak_bytes_per_s) == (pytest.approx(0.9, abs=0.05), 0.9 * MIB)
    assert "room for garbage" in verdict.reason


def test_what_the_runtime_takes_for_itself() -> None:
    """It explains growth and is reported, but decides no verdict; growth beside it does."""
    verdict = judged(MIB, FoundGrowth(0, 0.0, 0.0, runtime_bytes_per_s=MIB))
    assert (verdict.verdict, verdict.leak_bytes_per_s) == (Verdict.STEADY, 0)
    assert verdict.explained_share is not None
    assert verdict.explained_share > 0.9
    assert "of the runtime itself" in verdict.reason
    beside = FoundGrowth(0, 0.0, 0.5 * MIB, runtime_bytes_per_s=0.5 * MIB)
    assert judged(MIB, beside).verdict is Verdict.GROWING
    assert judged(MIB, FoundGrowth(0, 0.0, 0.0, runtime_bytes_per_s=0.3 * MIB)).verdict is Verdict.GROWING


def test_suppressed_growth() -> None:
    """It explains growth and is reported, but decides no verdict; growth beside it does."""
    verdict = judged(MIB, FoundGrowth(0, 0.0, 0.0, MIB))
    assert (verdict.verdict, verdict.leak_bytes_per_s) == (Verdict.STEADY, 0)
    assert verdict.explained_share is not None
    assert verdict.explained_share > 0.9
    assert "suppressed" in verdict.reason
    assert judged(MIB, FoundGrowth(0, 0.0, 0.0, 0.3 * MIB)).verdict is Verdict.GROWING
    assert judged(MIB, FoundGrowth(1, 0.5 * MIB, 0.0, 0.5 * MIB)).verdict is Verdict.LEAK


def test_leaking_mappings_of_shared_memory() -> None:
    """They are no anonymous memory: the process leaks, and neither growth nor a limit follows."""
    limit = MemoryLimit(MemoryLimitKind.HOST, 100 * MIB, 50 * MIB)
    found = FoundGrowth(0, 0.0, 0.0, mapped_leaks=1, mapped_bytes_per_s=309 << 10)
    verdict = judged(0, found, limits=(limit,))
    assert (verdict.verdict, verdict.leak_bytes_per_s) == (Verdict.LEAK, 309 << 10)
    assert verdict.reason == (
        "1 call site leaks +309 KiB/s of mapped files or shared memory; its other memory does not grow"
    )
    assert verdict.limit_reached_s is None
    both = judged(MIB, FoundGrowth(2, 0.9 * MIB, 0.0, mapped_leaks=3, mapped_bytes_per_s=MIB))
    assert both.leak_bytes_per_s == 1.9 * MIB
    assert both.explained_share == pytest.approx(0.9, abs=0.05)
    assert both.reason.startswith(
        "2 call sites leak +922 KiB/s, 3 call sites leak +1.00 MiB/s of mapped files or shared memory; memory"
    )


def test_leaking_thread_stacks() -> None:
    """A MiB of addresses a thread, of which 86 KiB are touched: the process leaks what memory gains."""
    limit = MemoryLimit(MemoryLimitKind.HOST, 200 * MIB, 100 * MIB)
    found = FoundGrowth(0, 0.0, 0.0, stack_leaks=1, stack_bytes_per_s=MIB)
    verdict = judged(86 << 10, found, seconds=300, limits=(limit,))
    assert verdict.verdict is Verdict.LEAK
    assert verdict.leak_bytes_per_s == pytest.approx(86 << 10, rel=0.1)
    assert verdict.limit_reached_s == pytest.approx(100 * MIB / (86 << 10), rel=0.1)
    assert verdict.reason.startswith("1 call site leaks +1.00 MiB/s of thread stacks' address space; memory")
    beside = judged(2 * MIB, FoundGrowth(1, 1.5 * MIB, 0.0, stack_leaks=1, stack_bytes_per_s=MIB))
    assert beside.leak_bytes_per_s == pytest.approx(2 * MIB, rel=0.1)
    untouched = judged(0.0, found)
    assert (untouched.verdict, untouched.leak_bytes_per_s) == (Verdict.LEAK, 0.0)
