"""When the next tick may wait: only if no traced process needs a prompt reading."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from bpfleakd.model.process import ProcessId
from bpfleakd.tracing.lifetime.tick_pace import NextTick, TickPace

S = 1_000_000_000
MB = 1 << 20
ROOM_BYTES = 1200 * MB


def find_next(
    pace: TickPace,
    *processes: SimpleNamespace,
    now_s: float,
    ring: float = 0.0,
    room_bytes: int = ROOM_BYTES,
) -> NextTick:
    return pace.next_tick(processes, ring, round(now_s * S), lambda _pid: room_bytes)  # type: ignore[arg-type]


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
    """What the second of two ticks finds: the first, at time 0, has nothing to compare with."""
    pace = pace or TickPace()
    find_next(pace, *processes, now_s=0)
    return find_next(pace, *processes, now_s=now_s, ring=ring)


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
        {"set_aside": object()},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_who_needs_prompt_readings_sets_the_pace(changed: dict[str, Any]) -> None:
    """However many others do not."""
    assert wait_s(sampled_inside(1), sampled_inside(2, **changed), now_s=600) == 0.0


def test_runtimes_are_followed_during_a_wait() -> None:
    """It is not shorter for them."""
    plain, managed = sampled_inside(1), sampled_inside(2, has_runtime=True)
    assert next_tick(plain, now_s=600) == NextTick(5.0, 5.0)
    assert next_tick(plain, managed, now_s=600) == NextTick(5.0, 5.0, needs_glances=True)


def test_many_reports_must_not_fill_the_ring() -> None:
    """A wait ends when a twentieth is full."""
    assert wait_s(sampled_inside(), now_s=600, ring=0.01) == pytest.approx(5.0)
    pace, process = TickPace(), sampled_inside()
    next_tick(process, now_s=600, pace=pace)
    assert find_next(pace, process, now_s=604, ring=0.05).wait_s == pytest.approx(4.0)
    assert find_next(pace, process, now_s=605, ring=0.06) == NextTick()


@pytest.mark.parametrize(
    ("grown_bytes", "expected_s"),
    [(0, 5.0), (MB, 5.0), (2 * MB, 5.0), (10 * MB, 1.0), (100 * MB, 0.1), (-20 * MB, 5.0)],
    ids=lambda value: f"{value}",
)
def test_a_wait_is_a_small_part_of_how_long_the_memory_lasts(grown_bytes: int, expected_s: float) -> None:
    """In a second, 10 of 1200 MB are taken: they last two minutes. Any process varies by a megabyte."""
    pace, process = TickPace(), sampled_inside()
    next_tick(process, now_s=599, pace=pace)
    process.anonymous_bytes += grown_bytes
    found = find_next(pace, process, now_s=600)
    assert found.wait_s == pytest.approx(expected_s)
    assert found.idle_s == pytest.approx(max(expected_s, 0.5))


@pytest.mark.parametrize(("later_s", "expected_s"), [(1, 1.0), (120, 2.0), (600, 6.0)])
def test_after_a_burst_a_wait_is_a_small_part_of_the_time_since(later_s: float, expected_s: float) -> None:
    """The burst would have taken all memory within two minutes, and the next may come at any time."""
    pace, process = TickPace(), sampled_inside()
    next_tick(process, now_s=599, pace=pace)
    process.anonymous_bytes += 10 * MB
    find_next(pace, process, now_s=600)
    found = find_next(pace, process, now_s=600 + later_s)
    assert found.wait_s == pytest.approx(expected_s, rel=0.02)


def test_a_large_process_may_take_the_last_memory_in_small_parts() -> None:
    """A thousandth of its own memory a second."""
    pace, process = TickPace(), sampled_inside(anonymous_bytes=10_000 * MB)
    next_tick(process, now_s=599, pace=pace)
    process.anonymous_bytes += 10 * MB
    assert find_next(pace, process, now_s=600).wait_s == pytest.approx(1.0)


def test_processes_that_grow_use_up_the_memory_together() -> None:
    """Each takes 5 MB a second of what they share."""
    pace, processes = TickPace(), [sampled_inside(1), sampled_inside(2)]
    next_tick(*processes, now_s=590, pace=pace)
    for process in processes:
        process.anonymous_bytes += 50 * MB
    assert find_next(pace, *processes, now_s=600).wait_s == pytest.approx(1.0)


def test_memory_that_cannot_be_read_sets_no_pace() -> None:
    """Nor does a limit that cannot: then every growth may be the last."""
    pace, process = TickPace(), sampled_inside()
    next_tick(process, now_s=599, pace=pace)
    process.anonymous_bytes = None
    assert find_next(pace, process, now_s=600).wait_s > 0.0
    process.anonymous_bytes = 110 * MB
    assert find_next(pace, process, now_s=601, room_bytes=0).wait_s == 0.0


def test_the_first_reading_is_followed_soon() -> None:
    """It has nothing to be compared with."""
    assert find_next(TickPace(), sampled_inside(), now_s=600).wait_s == 0.0


def test_a_tick_that_may_wait_may_take_as_long() -> None:
    """At idle priority; soon after an attach, half a second."""
    assert next_tick(sampled_inside(), now_s=600).idle_s == pytest.approx(5.0)
    assert next_tick(sampled_inside(), now_s=10).idle_s == 0.5
    assert next_tick(now_s=600).idle_s == math.inf


@pytest.mark.parametrize(
    ("changed", "idle_s"),
    [({"anonymous_bytes": None}, 5.0), ({"has_runtime": True}, 5.0), ({"set_aside": object()}, 0.0)],
)
def test_only_samplers_inside_leave_time_for_idle_priority(changed: dict[str, Any], idle_s: float) -> None:
    """Nothing else that is traced does."""
    process = sampled_inside(**changed)
    assert next_tick(process, now_s=600).idle_s == pytest.approx(idle_s)
    outside = SimpleNamespace(process=SimpleNamespace(id=ProcessId(2, 1)), is_inside=False)
    assert next_tick(process, sampled_inside(2, attachment=outside), now_s=600).idle_s == 0.0
