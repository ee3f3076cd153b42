"""Victims of a real OOM kill, in a control group of the test's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .memory_cgroup import memory_cgroup
from .waiting import wait_until
from .workloads import Workload, build

MIB = 1 << 20
LIMIT_BYTES = 16 * MIB
BLOCK_BYTES = 101 << 10


def kept_of(tracer: Any, pid: int) -> dict | None:
    """The newest report that is kept of a process."""
    reports = json.loads(tracer.control("reports", pid, "--json"))["reports"]
    return reports[0] if reports else None


def watched_bytes(tracer: Any, pid: int) -> int:
    """The memory of a process, as it was read last."""
    rows = json.loads(tracer.control("ps", "--all", "--json"))["watched"]
    return sum(row["anonymous_bytes"] for row in rows if row["pid"] == pid)


class InNamespace(Workload):
    """A program in a new PID namespace, where it has another pid."""

    def __init__(self, *command: str | Path) -> None:
        super().__init__(["unshare", "--pid", "--fork", "--kill-child", *command])
        children = Path(f"/proc/{super().pid}/task/{super().pid}/children").read_text()
        self._inner_pid = int(children.split()[0])

    @property
    def pid(self) -> int:
        return self._inner_pid


def killed_in(group: Any, program: Any) -> None:
    """Let the program take more memory than there is."""
    group.add(program.pid)
    program.start_step(1_000)
    wait_until(lambda: not program.is_alive, 60)


def test_what_a_victim_held_is_kept(daemon, workload, tmp_path):
    """Its report is marked, with all blocks, names, its bill and the container's; the log has it."""
    tracer = daemon(state={"dir": str(tmp_path / "state")})
    program = workload("growing", "leak")
    with memory_cgroup(LIMIT_BYTES) as group:
        tracer.attach_with_tables(program.pid)
        killed_in(group, program)
        entry = wait_until(lambda: kept_of(tracer, program.pid))
        cgroup = group.name
    assert (entry["state"], entry["comm"]) == ("oom", "growing")

    report = json.loads(tracer.control("reports", "--show", entry["id"], "--json"))
    site = report["sites"][0]
    assert site["function"] == "never_freed"
    # All that fits: the last block was on its way when there was no room for it.
    assert LIMIT_BYTES - 4 * MIB < site["live_bytes"] <= LIMIT_BYTES + BLOCK_BYTES
    assert site["live_bytes"] == site["live_count"] * BLOCK_BYTES

    oom = report["oom"]
    if oom["anon_bytes"] is not None:  # newer kernels
        assert oom["anon_bytes"] == pytest.approx(site["live_bytes"], rel=0.1)
    # The bill may miss the last tenth, and what was allocated while it was made.
    assert oom["bill"][0]["kind"] == "heap_live"
    assert 0.5 * site["live_bytes"] < oom["bill"][0]["bytes"] < 1.1 * site["live_bytes"]
    assert 0 <= oom["bill_age_s"] < 10
    assert oom["container"]["cgroup"] == cgroup
    assert "killed by the kernel because memory had run out" in tracer.control(
        "reports", "--show", entry["id"]
    )

    (event,) = [event for event in tracer.events("process.oom-killed") if event["pid"] == program.pid]
    assert event["traced"]
    assert "never_freed" in event["sites"][0]
    assert tracer.process(program.pid)["process"]["state"] == "oom"


def test_a_victim_that_is_only_watched_gets_its_bill(daemon, workload, tmp_path):
    """And a process that was killed in another way is not an OOM victim."""
    tracer = daemon(
        state={"dir": str(tmp_path / "state")},
        policy={"default": "off", "rules": [{"match": {"comm": "growing"}, "mode": "watch"}]},
        auto={"interval_s": 0.2},
    )
    program, other = workload("growing", "leak"), workload("growing", "leak")
    wait_until(lambda: watched_bytes(tracer, program.pid) and watched_bytes(tracer, other.pid))
    other.kill()
    with memory_cgroup(LIMIT_BYTES) as group:
        group.add(program.pid)
        program.step(60)
        # A bill is made at the reading that finds it grown.
        wait_until(lambda: watched_bytes(tracer, program.pid) > 5 * MIB)
        killed_in(group, program)
        entry = wait_until(lambda: kept_of(tracer, program.pid))
    assert (entry["state"], entry["comm"], entry["sites"]) == ("oom", "growing", 0)
    report = json.loads(tracer.control("reports", "--show", entry["id"], "--json"))
    assert report["process"]["mode"] == "watch"
    assert report["oom"]["bill"], report["oom"]["bill_missing"]
    assert report["oom"]["bill"][0]["kind"] == "heap_live"
    assert report["oom"]["bill"][0]["bytes"] > LIMIT_BYTES / 4
    assert kept_of(tracer, other.pid) is None
    (event,) = [event for event in tracer.events("process.oom-killed") if event["pid"] == program.pid]
    assert not event["traced"]


def test_a_victim_in_a_pid_namespace_of_its_own(daemon, tmp_path):
    """As in a container: the kernel names it by the host's pid. It is counted, and its report is marked."""
    tracer = daemon(state={"dir": str(tmp_path / "state")})
    program = InNamespace(build("growing"), "leak")
    try:
        tracer.attach(program.pid)
        with memory_cgroup(LIMIT_BYTES) as group:
            killed_in(group, program)
            entry = wait_until(lambda: kept_of(tracer, program.pid))
    finally:
        program.kill()
    assert (entry["state"], entry["comm"]) == ("oom", "growing")
    assert tracer.status()["oom_kills_total"] == 1
