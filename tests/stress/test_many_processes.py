"""Many processes at once, each with its own table."""

from __future__ import annotations

import time
from pathlib import Path

from ..kernel.truth import expect_ledger
from ..kernel.waiting import wait_until
from ..kernel.workloads import build


def test_two_hundred_processes_at_once(daemon, workload):
    """All are attached to from their start, and their figures are exact."""
    rule = {"match": {"exe": str(build("many_sites"))}, "mode": "exact"}
    tracer = daemon(policy={"default": "off", "rules": [rule]})
    workload("many_sites", 23)
    wait_until(lambda: tracer.status()["process_events"]["by_state"]["traced"] == 1)
    began_s = time.monotonic()
    programs = [workload("many_sites", 23) for _ in range(200)]
    started_s = time.monotonic() - began_s
    wait_until(lambda: tracer.status()["process_events"]["by_state"]["traced"] == 201, timeout_s=120)
    took_s = time.monotonic() - began_s
    ledgers = [program.step() for program in programs]
    for program, ledger in list(zip(programs, ledgers, strict=True))[::20]:
        expect_ledger(tracer.top_after_tick(program.pid), ledger)
    status = Path(f"/proc/{tracer.pid}/status").read_text().split("VmRSS:")[1].split()[0]
    tick_ms = tracer.status()["last_tick_s"] * 1e3
    print(
        f"200 started in {started_s:.1f} s, traced after {took_s:.1f} s; "
        f"daemon {int(status) / 1024:.0f} MiB, tick {tick_ms:.0f} ms"
    )
