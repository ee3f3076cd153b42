"""The lines about the whole process, and its managed heap."""

from __future__ import annotations

import pytest

from bpfleakd.cli.render.managed import heap_line
from bpfleakd.cli.render.words import unseen_lines, verdict_lines
from bpfleakd.model.limit import MemoryLimit, MemoryLimitKind
from bpfleakd.model.process import TracingMode
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.verdict import ProcessVerdict, Verdict

from ..samples import a_process


def a_verdict(limit: MemoryLimit | None, reached_s: float | None) -> ProcessVerdict:
    return ProcessVerdict(Verdict.LEAK, "why", 23.0, 23.0, 20.0, 26.0, 1.0, limit, reached_s)


@pytest.mark.parametrize("kind", MemoryLimitKind)
def test_when_a_limit_is_reached(kind: MemoryLimitKind) -> None:
    """Every kind has words."""
    why, when = verdict_lines(a_verdict(MemoryLimit(kind, 512 << 20, 23), 7_500.0))
    assert why == "why"
    assert when.startswith("at this rate the 512 MiB of ")
    assert when.endswith(" are used up in 2h05m")


def test_a_limit_without_a_forecast() -> None:
    """It is shown, if it is nearer than the machine's."""
    limit = MemoryLimit(MemoryLimitKind.MANAGED_HEAP, 512 << 20, 128 << 20)
    why, nearest = verdict_lines(a_verdict(limit, None))
    assert (why, nearest) == ("why", "nearest limit: the 512 MiB of the managed heap, 128 MiB used")


def test_no_limit_in_sight() -> None:
    """Then there is nothing to say of it."""
    assert verdict_lines(a_verdict(MemoryLimit(MemoryLimitKind.HOST, 1, 1), None)) == ["why"]
    assert verdict_lines(a_verdict(None, None)) == ["why"]


@pytest.mark.parametrize(("limit_bytes", "alive"), [(None, "3.00 MiB"), (64 << 20, "3.00 MiB of 64.0 MiB")])
def test_how_full_a_heap_is(limit_bytes: int | None, alive: str) -> None:
    """The line states the limit of the heap, if it is known."""
    heap = ManagedHeap("JVM", Verdict.LEAK, "why", 3 << 20, 12, 2, 0.0, limit_bytes=limit_bytes)
    assert heap_line(heap) == f"JVM heap: {alive} alive after 12 collections, 2 of them full"


def test_leaks_that_are_too_slow_to_show() -> None:
    """A leak needs twenty recorded blocks: a slower one would have fewer by now."""
    sampled = a_process(mode=TracingMode.SAMPLED, sample_interval_bytes=65_536, attached_s=64.0)
    (line,) = unseen_lines(sampled)
    assert line.startswith("a leak of less than 20.0 KiB/s does not show yet")
    day = a_process(mode=TracingMode.SAMPLED, sample_interval_bytes=65_536, attached_s=86_400.0)
    for nothing in (day, a_process(), a_process(mode=TracingMode.SAMPLED, sample_interval_bytes=None)):
        assert unseen_lines(nothing) == []
