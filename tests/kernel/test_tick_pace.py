"""Ticks become rare while nothing needs prompt readings, and frequent again as soon as something does."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from bpfleakd.process.proc_text import kilobyte_fields, read_text

from .inside_library import library
from .waiting import wait_until

TICK_S = 0.2
# At a wait of 0.4 s, after 50 s; on a busy machine a tick takes a tenth of a second.
FEW_PER_S, MANY_PER_S = 2.6, 3.2
# Lasts for some 26 s at the rate of `grow`.
ROOM_BYTES = 128 << 20


def ticks_per_s(tracer, span_s: float = 2.0) -> float:
    before, began_s = tracer.status()["ticks"], time.monotonic()
    time.sleep(span_s)
    return (tracer.status()["ticks"] - before) / (time.monotonic() - began_s)


@pytest.mark.long
def test_a_program_that_samples_inside_needs_few_readings(daemon, preloaded, workload):
    """After some time; its figures are those of now whenever they are asked for."""
    tracer = daemon(tick_s=TICK_S)
    program = preloaded("sampling", "malloc", 16, 20_000, interval_bytes=4_096)
    tracer.control("attach", program.pid, "--mode", "inside")
    program.step(10)
    wait_until(lambda: ticks_per_s(tracer) > MANY_PER_S)
    wait_until(lambda: ticks_per_s(tracer) < FEW_PER_S, 120)

    ledger = program.step(10)
    report = tracer.top(program.pid)
    error = report["process"]["live_bytes_stderr"]
    assert abs(report["process"]["live_bytes"] - ledger["live_bytes"]) <= 4.5 * error

    other = workload("churn")
    tracer.attach(other.pid)
    # One that is traced from outside needs them.
    wait_until(lambda: ticks_per_s(tracer) > MANY_PER_S)
    tracer.detach(other.pid)
    wait_until(lambda: ticks_per_s(tracer) < FEW_PER_S, 30)


# Each line names a function that keeps memory, and is gone afterwards.
PASSING_FUNCTIONS = """
import sys
kept = []
print("ready", flush=True)
for name in map(str.strip, sys.stdin):
    scope = {"kept": kept}
    exec(f"def {name}(): kept.append(bytearray(1 << 20))", scope)
    for _ in range(20):
        scope[name]()
    print("done", flush=True)
"""


@pytest.mark.long
def test_functions_of_a_runtime_are_named_although_readings_are_few(daemon, service):
    """Each new stack is read at once, before its functions are gone."""
    tracer = daemon(tick_s=TICK_S)
    program = service("env", f"LD_PRELOAD={library()}", "python3", "-c", PASSING_FUNCTIONS)
    tracer.control("attach", program.pid, "--mode", "inside")
    wait_until(lambda: ticks_per_s(tracer) < FEW_PER_S, 120)

    names = [f"passing_{number}" for number in range(10)]
    for name in names:
        before = tracer.status()["ticks"]
        program.stdin.write(f"{name}\n".encode())
        program.stdin.flush()
        assert program.stdout.readline() == b"done\n"
        wait_until(lambda before=before: tracer.status()["ticks"] > before)

    sites = tracer.top(program.pid)["sites"]
    assert {frame["function"] for site in sites for frame in site["stack"]} >= set(names)


@pytest.mark.long
def test_memory_that_grows_is_read_promptly_if_it_may_run_out(daemon, preloaded):
    """Until it stays the same."""
    tracer = daemon(tick_s=TICK_S)
    program = preloaded("sampling", "malloc", 16, 2_000)
    tracer.attach(program.pid)

    def grow() -> float:
        before, began_s = tracer.status()["ticks"], time.monotonic()
        while time.monotonic() < began_s + 3:
            program.step(60)
            time.sleep(TICK_S)
        return (tracer.status()["ticks"] - before) / (time.monotonic() - began_s)

    wait_until(lambda: grow() < FEW_PER_S, 120)
    limit_address_space(program.pid, ROOM_BYTES)
    wait_until(lambda: grow() > MANY_PER_S, 30)
    wait_until(lambda: ticks_per_s(tracer) < FEW_PER_S, 60)


def limit_address_space(pid: int, room_bytes: int) -> None:
    """Let a process map `room_bytes` more, and nothing beyond."""
    used_bytes = kilobyte_fields(read_text(Path(f"/proc/{pid}/status")))["VmSize"]
    _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (used_bytes + room_bytes, hard))
