"""Processes start, fork, execute and end by themselves, and the policy says which are traced."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections import Counter
from datetime import datetime
from typing import Any

from bpfleakd.api.client import DaemonClient

from .truth import by_function, expect_ledger, expect_no_losses
from .waiting import wait_until
from .workloads import build

BURST = 2_000
# Twice as many events as find room while the daemon does not read them.
STORM_THREADS = 45_000


def exact(program: str, **more: Any) -> dict[str, Any]:
    """A policy that traces one of the workloads exactly, and nothing else."""
    # As the kernel names it: build/ may be a link.
    rule = {"match": {"exe": str(build(program).resolve())}, "mode": "exact", **more}
    return {"default": "off", "rules": [rule]}


def is_traced(tracer, pid: int) -> bool:
    row = tracer.process(pid)
    return row is not None and row["process"]["state"] == "traced"


def attached_at_s(tracer, pid: int) -> float:
    """When the log says that the recording of a process began."""
    events = [event for event in tracer.events("process.attached") if event["pid"] == pid]
    return datetime.fromisoformat(events[-1]["timestamp"]).timestamp() if events else 0.0


def test_a_matching_program_is_recorded_soon_after_its_exec(daemon, workload):
    """Within 100 ms of its exec on an idle machine, and of that order on one that is busy."""
    tracer = daemon(policy=exact("many_sites"))
    delays_ms = []
    for _ in range(6):
        started_s = time.time()
        program = workload("many_sites", 23)
        wait_until(lambda pid=program.pid: attached_at_s(tracer, pid))
        delays_ms.append((attached_at_s(tracer, program.pid) - started_s) * 1e3)
    print("exec to recording, ms:", *(f"{delay:.0f}" for delay in delays_ms))
    assert statistics.median(delays_ms[1:]) < 5_000

    wait_until(lambda: is_traced(tracer, program.pid))
    ledger = program.step()
    expect_ledger(tracer.top_after_tick(program.pid), ledger)
    assert tracer.supervised(program.pid)["rule"] == "rule 1"


def test_no_stack_from_the_start_of_a_program_lacks_frames_in_silence(daemon, workload):
    """Its tables may still be being built: each stack without a truncation mark reaches the start."""
    tracer = daemon(policy=exact("many_sites"))
    program = workload("many_sites", 101)
    for _ in range(5):
        program.step(101)
        time.sleep(0.05)
    wait_until(lambda: is_traced(tracer, program.pid))
    program.step(101)

    sites = [site for site in tracer.top_after_tick(program.pid)["sites"] if site["kind"] == "heap"]
    assert sites
    print(Counter(site["truncated"] for site in sites))
    for site in sites:
        assert site["truncated"] or site["stack"][-1]["function"] == "_start", site["stack"]


def test_a_child_of_a_followed_process_is_traced_with_a_table_of_its_own(daemon, workload):
    """Its allocations belong to it; its frees of inherited blocks do not count."""
    tracer = daemon(policy=exact("lives", follow_children=True))
    program = workload("lives", "child")
    child = program.step()["child_pid"]
    wait_until(lambda: is_traced(tracer, child))
    program.step()

    report = tracer.top_after_tick(child)
    assert [(site["function"], site["live_count"]) for site in report["sites"]] == [
        ("allocate_in_child", 101)
    ]
    wait_until(lambda: tracer.top(child)["process"]["unmatched_frees"] == 1)
    expect_no_losses(report)
    assert tracer.top(program.pid)["process"]["live_count"] == 0


def test_threads_are_no_processes(daemon, workload):
    """They come as forks, too."""
    tracer = daemon(policy=exact("lives"))
    before = tracer.status()["process_events"]["events_total"]
    program = workload("lives", "threads")
    wait_until(lambda: is_traced(tracer, program.pid))
    program.step(1_009)
    life = tracer.status()["process_events"]
    assert life["by_state"]["traced"] == 1
    assert life["events_total"] - before < 1_009


def test_after_exec_it_is_another_program(daemon, workload):
    """The old table ends; the new one has the allocations of the new program."""
    tracer = daemon(policy=exact("exec_fork"))
    program = workload("exec_fork", "exec")
    wait_until(lambda: is_traced(tracer, program.pid))
    program.start_step()
    program.wait_ready()
    wait_until(lambda: len([e for e in tracer.events("process.attached") if e["pid"] == program.pid]) == 2)
    assert [event["live_count"] for event in tracer.events("process.execed")] == [23]

    ledger = program.step()
    expect_ledger(tracer.top_after_tick(program.pid), ledger)


def test_an_end_is_noticed_before_the_next_tick(daemon, workload):
    """By the event of it."""
    tracer = daemon(policy=exact("many_sites"), tick_s=30)
    program = workload("many_sites", 23)
    wait_until(lambda: attached_at_s(tracer, program.pid))
    program.kill()
    wait_until(lambda: tracer.events("process.exited"), timeout_s=10)


def test_a_burst_of_short_processes_disturbs_nothing(daemon, workload):
    """2,000 that each should be traced: one that lives on stays exact, and questions are answered."""
    policy = exact("lives")
    policy["rules"].append({"match": {"exe": "/*bin/true"}, "mode": "exact"})
    tracer = daemon(policy=policy)
    program = workload("lives", "spawn")
    wait_until(lambda: is_traced(tracer, program.pid))
    client = DaemonClient(tracer.socket)

    answers_s = []
    program.start_step(BURST)
    began_s = time.monotonic()
    while time.monotonic() < began_s + 2:
        asked_s = time.monotonic()
        client.processes()
        answers_s.append(time.monotonic() - asked_s)
        time.sleep(0.05)
    ledger = program.finish_step()
    took_s = time.monotonic() - began_s

    report = tracer.top_after_tick(program.pid)
    # posix_spawn maps and unmaps a stack for each child.
    assert by_function(report)["allocate_own"] == ledger["sites"]["allocate_own"]
    assert report["process"]["live_bytes"] == ledger["live_bytes"]
    expect_no_losses(report)
    life = tracer.status()["process_events"]
    print(f"{BURST} processes in {took_s:.1f} s; slowest answer {max(answers_s) * 1e3:.0f} ms; {life}")
    assert life["short_lived_total"] > BURST / 2
    assert tracer.log.count("\n") < BURST
    wait_until(lambda: tracer.status()["process_events"]["by_state"]["traced"] == 1)


def test_missed_events_are_made_up_for(daemon, workload):
    """A daemon that could not read for a while looks at all processes, and finds those it missed."""
    tracer = daemon(policy=exact("many_sites"))
    storm = workload("lives", "threads")
    wait_until(lambda: tracer.events("process-events.source"))
    os.kill(tracer.pid, signal.SIGSTOP)
    try:
        storm.step(STORM_THREADS)
        program = workload("many_sites", 23)
    finally:
        os.kill(tracer.pid, signal.SIGCONT)

    wait_until(lambda: is_traced(tracer, program.pid))
    wait_until(lambda: tracer.events("process-events.gap"))
    assert tracer.status()["process_events"]["gaps_total"] >= 1


def test_without_process_events_proc_is_scanned(daemon, workload):
    """More slowly, with the same result: started, executed, ended."""
    tracer = daemon(policy=exact("exec_fork"), process_events={"source": "scan", "scan_s": 0.1})
    program = workload("exec_fork", "exec")
    wait_until(lambda: is_traced(tracer, program.pid))
    assert tracer.status()["process_events"]["source"] == "scan"
    program.start_step()
    program.wait_ready()
    wait_until(lambda: len([e for e in tracer.events("process.attached") if e["pid"] == program.pid]) == 2)
    ledger = program.step()
    expect_ledger(tracer.top_after_tick(program.pid), ledger)
    program.kill()
    wait_until(lambda: tracer.supervised(program.pid) is None)


def test_manual_goes_before_the_policy(daemon, workload):
    """A manually detached process stays detached, also when the policy is reloaded."""
    tracer = daemon(policy=exact("many_sites"))
    program = workload("many_sites", 23)
    wait_until(lambda: is_traced(tracer, program.pid))
    tracer.detach(program.pid)
    os.kill(tracer.pid, signal.SIGHUP)
    wait_until(lambda: tracer.events("config.reloaded"))
    wait_until(lambda: tracer.status()["process_events"]["by_state"]["deciding"] == 0)
    row = tracer.supervised(program.pid)
    assert (row["state"], row["rule"]) == ("detached", "manual")


def test_another_policy_holds_after_a_reload(daemon, workload):
    """SIGHUP: traced processes that no longer match are detached, and new matches are attached."""
    tracer = daemon(policy=exact("many_sites"))
    first, second = workload("many_sites", 23), workload("churn", 2)
    wait_until(lambda: is_traced(tracer, first.pid))
    tracer.configure(policy=exact("churn"))
    os.kill(tracer.pid, signal.SIGHUP)
    wait_until(lambda: is_traced(tracer, second.pid))
    wait_until(lambda: not is_traced(tracer, first.pid))
    assert tracer.supervised(first.pid)["state"] == "off"
