"""When the next tick may wait: only if no traced process needs a prompt reading."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bpfleakd.model.process import ProcessId
from bpfleakd.tracing.lifetime.tick_pace import TickPace

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
            "go": None,
            "runtimes": (),
        }
        | changed
    )


def wait_s(
    *processes: SimpleNamespace, now_s: float, ring: float = 0.0, pace: TickPace | None = None
) -> float:
    """What the second of two ticks finds: the first has nothing to compare with."""
    pace = pace or TickPace()
    pace.wait_s(processes, 0.0, 0)  # type: ignore[arg-type]
    return pace.wait_s(processes, ring, round(now_s * S))  # type: ignore[arg-type]


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
        {"runtimes": (object(),)},
        {"go": object()},
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

    assert (pace.wait_s([process], 0.0, 600 * S) > 0.0) is waits
    assert pace.wait_s([process], 0.0, 600 * S) > 0.0


def test_the_first_reading_is_followed_soon() -> None:
    """It has nothing to be compared with."""
    assert TickPace().wait_s([sampled_inside()], 0.0, 600 * S) == 0.0  # type: ignore[list-item]
