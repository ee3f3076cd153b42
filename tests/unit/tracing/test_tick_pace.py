"""When the next tick may wait: only if no traced process needs a prompt reading."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bpfleakd.model.process import ProcessId
from bpfleakd.tracing.lifetime.tick_pace import NextTick, TickPace

S = 1_000_000_000
MB = 1 << 20


def sampled_inside(pid: int = 1, *, attached_s: float = 0.0, **changed: Any) -> SimpleNamespace:
    """A program with a sampler inside, attached to at a time."""
    return SimpleNamespace(
        **{
            "attachment": SimpleNamespace(process=SimpleNamespace(id=ProcessId(pid, 1)), is_inside=True),
            "since": SimpleNamespace(attached_ns=round(attached_s * S)),
            "anonymous_bytes": 100 * MB,
            "set_aside": None,
            "has_runtime": False,
        }
        | changed
    )


def next_tick(
    *processes: SimpleNamespace, now_s: float, ring: float = 0.0, pace: TickPace | None = None
) -> NextTick:
    """What the second of two ticks finds: the first has nothing to compare with."""
    pace = pace or TickPace()
    pace.next_tick(processes, 0.0, 0)  # type: ignore[arg-type]
    return pace.next_tick(processes, ring, round(now_s * S))  # type: ignore[arg-type]


def wait_s(*processes: SimpleNamespace, **how: Any) -> float:
    return next_tick(*processes, **how).wait_s


def test_a_wait_is_a_small_part_of_what_was_observed() -> None:
    """Of the process that was observed for the shortest time."""
    old, young = sampled_inside(1), sampled_inside(2, attached_s=480)
    assert wait_s(old, now_s=600) == pytest.approx(5.0)
    assert wait_s(old, young, now_s=600) == pytest.approx(1.0)


def test_nothing_traced_needs_no_reading() -> None:
    """The daemon has its own limit."""
    assert wait_s(now_s=600) == math.inf


@pytest.mark.parametrize(
    "changed",
    [
        {"attachment": SimpleNamespace(process=SimpleNamespace(id=ProcessId(2, 1)), is_inside=False)},
        {"has_runtime": True},
        {"set_aside": object()},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_who_needs_prompt_readings_sets_the_pace(changed: dict[str, Any]) -> None:
    """However many others do not."""
    assert wait_s(sampled_inside(1), sampled_inside(2, **changed), now_s=600) == 0.0


def test_many_reports_must_not_fill_the_ring() -> None:
    """In a longer wait there would be more of them."""
    assert wait_s(sampled_inside(), now_s=600, ring=0.1) == 0.0
    assert wait_s(sampled_inside(), now_s=600, ring=0.01) > 0.0


@pytest.mark.parametrize(
    ("grow", "waits"),
    [
        (lambda before: before, True),
        (lambda before: before + before // 100, True),
        (lambda before: before + before // 20, False),
        (lambda before: before - before // 20, False),
        (lambda _before: None, True),
    ],
    ids=["same", "little", "grows", "shrinks", "unreadable"],
)
def test_memory_that_changes_is_read_promptly(grow: Callable[[int], int | None], waits: bool) -> None:
    """Until it stays the same again."""
    pace, process = TickPace(), sampled_inside()
    assert wait_s(process, now_s=600, pace=pace) > 0.0

    process.anonymous_bytes = grow(process.anonymous_bytes)

    assert (pace.next_tick([process], 0.0, 600 * S).wait_s > 0.0) is waits
    assert pace.next_tick([process], 0.0, 600 * S).wait_s > 0.0


def test_the_first_reading_is_followed_soon() -> None:
    """It has nothing to be compared with."""
    assert TickPace().next_tick([sampled_inside()], 0.0, 600 * S).wait_s == 0.0  # type: ignore[list-item]


def test_a_tick_that_may_wait_may_take_as_long() -> None:
    """At idle priority; soon after an attach, half a second."""
    assert next_tick(sampled_inside(), now_s=600).idle_s == pytest.approx(5.0)
    assert next_tick(sampled_inside(), now_s=10).idle_s == 0.5
    assert next_tick(now_s=600).idle_s == math.inf


@pytest.mark.parametrize(
    ("changed", "idle_s"),
    [({"anonymous_bytes": None}, 5.0), ({"has_runtime": True}, 0.5), ({"set_aside": object()}, 0.0)],
)
def test_samplers_inside_leave_half_a_second(changed: dict[str, Any], idle_s: float) -> None:
    """But nothing else that is traced does, nor does a ring that fills."""
    process = sampled_inside(**changed)
    assert next_tick(process, now_s=600).idle_s == pytest.approx(idle_s)
    outside = SimpleNamespace(process=SimpleNamespace(id=ProcessId(2, 1)), is_inside=False)
    assert next_tick(process, sampled_inside(2, attachment=outside), now_s=600).idle_s == 0.0
    assert next_tick(process, now_s=600, ring=0.1).idle_s == 0.0


def test_growing_memory_leaves_half_a_second() -> None:
    """The tick is not to wait."""
    pace, process = TickPace(), sampled_inside()
    next_tick(process, now_s=600, pace=pace)
    process.anonymous_bytes *= 2
    assert pace.next_tick([process], 0.0, 600 * S) == NextTick(0.0, 0.5)  # type: ignore[list-item]
