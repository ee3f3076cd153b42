"""Automatic tracing: processes that grow are traced for a while, and no others are touched."""

from __future__ import annotations

import json

import pytest

from .kernel_objects import changed_text
from .waiting import wait_until
from .workloads import build

BLOCK_BYTES = 101 << 10
ROUNDS_A_S = 50
# Seconds in place of minutes.
AUTO = {
    "interval_s": 0.2,
    "warmup_s": 0.5,
    "growth_window_s": 4,
    "growth_min_bytes": 1 << 20,
    "windows": 2,
    "window_s": 6,
    "pause_s": 60,
}


def policy(mode: str) -> dict:
    """Only the program of these tests, whatever else there is on this machine."""
    return {"default": "off", "rules": [{"match": {"exe": str(build("growing").resolve())}, "mode": mode}]}


@pytest.fixture
def growing(workload):
    """A factory: `growing("leak")` is at work for the time of a test."""

    def start(mode: str):
        program = workload("growing", mode)
        program.start_step(40 * ROUNDS_A_S)
        return program

    return start


def watched(tracer) -> dict[int, dict]:
    """The watched processes by pid."""
    answer = json.loads(tracer.control("ps", "--all", "--json"))
    return {row["pid"]: row for row in answer["watched"]}


def attached_pids(tracer) -> set[int]:
    """Everybody that was ever attached to."""
    events = (json.loads(line) for line in tracer.log.splitlines() if '"process.attached"' in line)
    return {event["pid"] for event in events}


def test_the_program_that_leaks_is_found_among_healthy_ones(daemon, growing):
    """Only that program is attached to, for a while; the result is kept after the detach."""
    tracer = daemon(auto=AUTO, policy=policy("auto"))
    healthy = [growing(mode) for mode in ("steady", "saw", "jump")]
    leaking = growing("leak")
    wait_until(lambda: set(watched(tracer)) == {leaking.pid, *(program.pid for program in healthy)})

    # while it is being looked at
    wait_until(lambda: changed_text(leaking.pid), 30)

    # and afterwards
    wait_until(lambda: watched(tracer)[leaking.pid]["state"] == "paused", 30)
    row = watched(tracer)[leaking.pid]
    assert row["windows"] == 1
    assert 0 < row["next_look_s"] <= AUTO["pause_s"]
    assert row["growth_bytes_per_s"] > 100_000
    report = tracer.top(leaking.pid)
    assert report["process"]["state"] == "detached"
    (site,) = [site for site in report["sites"] if site["live_bytes"]]
    assert site["function"] == "never_freed"
    assert site["live_bytes"] == site["live_count"] * BLOCK_BYTES
    assert 0 < site["live_count"] <= ROUNDS_A_S * row["windows"] * 40
    assert changed_text(leaking.pid) == []
    assert attached_pids(tracer) == {leaking.pid}
    for program in healthy:
        assert changed_text(program.pid) == []


def test_a_process_that_is_only_watched_is_never_attached(daemon, growing):
    """It shows as growing, with its memory and rate."""
    tracer = daemon(auto=AUTO, policy=policy("watch"))
    leaking = growing("leak")
    wait_until(lambda: watched(tracer).get(leaking.pid, {}).get("state") == "growing", 30)
    row = watched(tracer)[leaking.pid]
    assert row["anonymous_bytes"] > 1 << 20
    assert row["growth_bytes_per_s"] == pytest.approx(ROUNDS_A_S * BLOCK_BYTES, rel=0.6)
    tracer.wait_for_ticks(10)
    assert attached_pids(tracer) == set()


@pytest.mark.long
def test_what_costs_a_program_too_much_is_let_go_of(daemon, workload):
    """Traced by the policy it is over its budget at once; its report is kept, and says why."""
    program = workload("churn", 2)
    rules = [{"match": {"pid": program.pid}, "mode": "exact"}]
    tracer = daemon(
        policy={"default": "off", "rules": rules}, budget={"process_percent": 1, "host_percent": 50}
    )
    wait_until(lambda: tracer.process(program.pid))
    assert tracer.process(program.pid)["limited"] == ""

    program.start_step(100_000_000)

    wait_until(lambda: tracer.process(program.pid)["process"]["state"] == "detached")
    assert "over its budget of 1%" in tracer.process(program.pid)["limited"]
    assert changed_text(program.pid) == []
    assert tracer.top(program.pid)["process"]["allocated_count"] > 0
    tracer.wait_for_ticks(5)
    assert tracer.process(program.pid)["process"]["state"] == "detached"


def test_somebody_who_attaches_manually_gets_what_was_asked_for(daemon, workload):
    """And sees what it costs: a malloc and free at full speed cost less than their probes."""
    program = workload("churn", 1)
    tracer = daemon(policy={"default": "off"}, budget={"process_percent": 1, "host_percent": 1})
    tracer.attach(program.pid)
    program.start_step(100_000_000)
    wait_until(lambda: tracer.process(program.pid)["load_percent"] > 3)
    assert tracer.process(program.pid)["limited"] == ""
    assert tracer.process(program.pid)["process"]["state"] == "traced"


def test_too_much_memory_lets_go_of_the_largest_process(daemon, workload):
    """The daemon continues, and reports it."""
    small, large = workload("many_sites", 2), workload("many_sites", 200)
    tracer = daemon(policy={"default": "off"}, limits={"daemon_rss_bytes": 1 << 20})
    for program in (small, large):
        tracer.attach(program.pid)
        program.step()
    wait_until(lambda: tracer.process(large.pid)["process"]["state"] == "detached", 30)
    assert "daemon memory" in tracer.process(large.pid)["limited"]
    # The kernel removes shared events only after a grace period.
    wait_until(lambda: changed_text(large.pid) == [])
    assert "memory.caches-shed" in tracer.log
