"""The worker's thread: calls in their order, and at idle priority what nobody waits for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from bpfleakd.daemon.worker import Worker
from bpfleakd.threads import begin_thread, usual_priority

from ..scheduling import IDLE

LONG_S = 60.0


def scheduling() -> int:
    return os.sched_getscheduler(0)


def becomes(wanted: Callable[[], bool]) -> bool:
    """Whether this is true before long."""
    until_s = time.monotonic() + 20
    while not wanted() and time.monotonic() < until_s:
        time.sleep(0.001)
    return wanted()


def test_only_what_nobody_waits_for_is_idle() -> None:
    """The thread is as usual before and after."""

    async def calls() -> list[int]:
        with Worker() as worker:
            return [
                await worker.call(scheduling),
                await worker.call_idly(scheduling, LONG_S),
                await worker.call(scheduling),
            ]

    assert asyncio.run(calls()) == [os.SCHED_OTHER, IDLE, os.SCHED_OTHER]


def test_a_failure_ends_it_too() -> None:
    """The error reaches the caller."""

    def fail() -> None:
        raise ValueError("no")

    async def calls() -> int:
        with Worker() as worker:
            with pytest.raises(ValueError, match="no"):
                await worker.call_idly(fail, LONG_S)
            return await worker.call(scheduling)

    assert asyncio.run(calls()) == os.SCHED_OTHER


def test_a_call_that_waits_ends_it() -> None:
    """At once, in the middle of its work."""
    began, waits = threading.Event(), threading.Event()

    def until_hurried() -> tuple[int, bool]:
        before = scheduling()
        began.set()
        return before, becomes(lambda: waits.is_set() and scheduling() == os.SCHED_OTHER)

    async def calls() -> tuple[tuple[int, bool], int, int]:
        with Worker() as worker:
            idly = asyncio.create_task(worker.call_idly(until_hurried, LONG_S))
            await asyncio.to_thread(began.wait)
            answer = asyncio.create_task(worker.call(scheduling))
            await asyncio.sleep(0)
            waits.set()
            return await idly, await answer, await worker.call_idly(scheduling, LONG_S)

    assert asyncio.run(calls()) == ((IDLE, True), os.SCHED_OTHER, IDLE)


def test_a_call_that_waits_keeps_it_from_beginning() -> None:
    """The call waits behind another one that nobody waits for."""
    began, go_on = threading.Event(), threading.Event()

    def until_told() -> None:
        began.set()
        go_on.wait()

    async def calls() -> tuple[int, int]:
        with Worker() as worker:
            first = asyncio.create_task(worker.call_idly(until_told, LONG_S))
            await asyncio.to_thread(began.wait)
            second = asyncio.create_task(worker.call_idly(scheduling, LONG_S))
            await asyncio.sleep(0)
            answer = asyncio.create_task(worker.call(scheduling))
            await asyncio.sleep(0)
            go_on.set()
            await first
            return await second, await answer

    assert asyncio.run(calls()) == (os.SCHED_OTHER, os.SCHED_OTHER)


def test_its_time_is_limited() -> None:
    """On a machine without an idle core, it would take for ever."""
    late = threading.Event()

    def until_late() -> bool:
        return becomes(lambda: late.is_set() and scheduling() == os.SCHED_OTHER)

    async def calls() -> tuple[bool, int]:
        with Worker() as worker:
            asyncio.get_running_loop().call_later(0.05, late.set)
            return await worker.call_idly(until_late, 0.05), await worker.call_idly(scheduling, LONG_S)

    assert asyncio.run(calls()) == (True, IDLE)


def test_nothing_that_it_starts_is_idle() -> None:
    """Threads and processes inherit the priority, and keep it."""

    def of_thread() -> int:
        found: list[int] = []
        begin_thread("one", lambda: found.append(scheduling())).join()
        return found[0]

    def of_process() -> int:
        program = ["python3", "-c", "import os; print(os.sched_getscheduler(0))"]
        with usual_priority():
            return int(subprocess.run(program, check=True, capture_output=True).stdout)

    async def calls() -> list[tuple[int, int]]:
        with Worker() as worker:
            return [
                await worker.call_idly(lambda start=start: (start(), scheduling()), LONG_S)
                for start in (of_thread, of_process)
            ]

    assert asyncio.run(calls()) == [(os.SCHED_OTHER, IDLE)] * 2


def test_a_block_at_usual_priority_lasts_until_its_own_end() -> None:
    """It may contain others."""

    def call() -> tuple[int, int, int]:
        with usual_priority():
            with usual_priority():
                inside = scheduling()
            behind = scheduling()
        return inside, behind, scheduling()

    async def calls() -> tuple[int, int, int]:
        with Worker() as worker:
            return await worker.call_idly(call, LONG_S)

    assert asyncio.run(calls()) == (os.SCHED_OTHER, os.SCHED_OTHER, IDLE)


def test_a_start_does_not_make_a_hurried_call_idle_again() -> None:
    """Whether its time was over before the start, or is meanwhile."""

    async def scheduling_after(is_over_before: bool) -> int:
        over = threading.Event()

        def start() -> int:
            if is_over_before:
                over.wait()
            with usual_priority():
                over.wait()
            return scheduling()

        with Worker() as worker:
            first = asyncio.create_task(worker.call_idly(start, LONG_S))
            asyncio.get_running_loop().call_later(0.05, over.set)
            await asyncio.sleep(0.01)
            waiting = asyncio.create_task(worker.call(scheduling))
            await waiting
            return await first

    assert asyncio.run(scheduling_after(True)) == os.SCHED_OTHER
    assert asyncio.run(scheduling_after(False)) == os.SCHED_OTHER
