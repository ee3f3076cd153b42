"""The daemon's own memory, over many processes and sites; and a daemon that traces a copy of itself."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bpfleakd import errors
from bpfleakd.api.client import DaemonClient

from ..kernel.daemons import Daemon
from ..kernel.truth import expect_ledger
from ..kernel.waiting import wait_until
from ..kernel.workloads import Workload

CYCLES = 300
WARM_UP = 30
CYCLES_S = 90.0

STACKS = 20_000
# Last reports of 16 processes are kept (tracing/traced_processes.py).
TIMES_OVER = 16 + 8
MIB = 1 << 20


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)[0]) << 10


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_attaching_and_detaching_hundreds_of_times_costs_nothing(
    daemon: Callable[..., Daemon], workload: Callable[..., Workload]
):
    """Neither memory (at most 2 MiB above the warm daemon) nor descriptors."""
    tracing = daemon()
    client = DaemonClient(tracing.socket)
    program = workload("churn", 1, 1_000)
    deadline = time.monotonic() + CYCLES_S
    warm_bytes = warm_descriptors = done = 0
    for done in range(1, CYCLES + 1):
        client.attach(program.pid)
        program.step()
        client.report(program.pid)
        client.detach(program.pid)
        if done == WARM_UP:
            warm_bytes, warm_descriptors = resident_bytes(tracing.pid), descriptors(tracing.pid)
        if time.monotonic() > deadline:
            break
    grown_bytes = resident_bytes(tracing.pid) - warm_bytes
    print(f"{done} cycles, {warm_bytes / MIB:.1f} MiB and {grown_bytes / MIB:+.1f} MiB")
    assert done >= 3 * WARM_UP
    assert grown_bytes < 2 * MIB
    wait_until(lambda: descriptors(tracing.pid) <= warm_descriptors)


def test_tens_of_thousands_of_sites_are_forgotten_with_their_process(
    daemon: Callable[..., Daemon], workload: Callable[..., Workload]
):
    """Once it keeps as many last reports as it ever does, a process with 20,000 call sites costs nothing."""
    tracing = daemon()
    client = DaemonClient(tracing.socket)
    sizes = []
    for _ in range(TIMES_OVER):
        program = workload("many_sites", STACKS, STACKS, 101)
        client.attach(program.pid)
        program.step(STACKS)
        time.sleep(3 * tracing.configuration["tick_s"])
        report = client.report(program.pid, limit=10)
        assert report.process.live_count == STACKS
        client.detach(program.pid)
        program.exit()
        sizes.append(resident_bytes(tracing.pid))
    print([f"{size / MIB:.1f} MiB" for size in sizes])
    assert max(sizes[-4:]) - max(sizes[-8:-4]) < 4 * MIB


def test_it_traces_a_copy_of_itself(daemon: Callable[..., Daemon], workload: Callable[..., Workload]):
    """The copy continues to trace exactly while its own blocks are counted; the daemon refuses to trace
    itself.
    """
    watched, watching = daemon(), daemon()
    program = workload("every_function", 2)
    watching.attach(watched.pid)
    watched.attach(program.pid)
    for _ in range(3):
        ledger = program.step()
        expect_ledger(watched.top_after_tick(program.pid), ledger)
    seen = watching.top_after_tick(watched.pid)["process"]
    assert seen["allocated_count"] > 1_000
    with pytest.raises(errors.TargetRefused):
        DaemonClient(watched.socket).attach(watched.pid)
    watching.detach(watched.pid)
    watched.detach(program.pid)
