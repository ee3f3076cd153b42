"""How processes are to be traced outlives every daemon: mode, rule, limit, level and labels."""

from __future__ import annotations

import json
import time

import pytest

from .waiting import wait_until

# A burst of this many pairs exceeds the budget below, and calm takes five minutes.
PAIRS = 10_007
BUDGET = {"process_percent": 0.1, "host_percent": 100}


@pytest.fixture
def world(daemon, workload):
    """A daemon and the four processes that it traces, each requested in another way."""
    dear, limited = workload("churn", 1, PAIRS), workload("many_sites", 23)
    rules = [
        {"match": {"pid": dear.pid}, "mode": "exact"},
        {"match": {"pid": limited.pid}, "mode": "sampled", "limits": {"live_blocks": 1009}},
    ]
    tracer = daemon(policy={"default": "off", "rules": rules}, budget=BUDGET, unattended_s=60)
    wanted = workload("many_sites", 7), workload("many_sites", 7)
    for program, mode in zip(wanted, ("auto", "exact"), strict=True):
        tracer.control("attach", program.pid, "--mode", mode)
    wait_until(lambda: len(requests(tracer)) == 4)
    while not requests(tracer)[dear.pid]["level"]:
        dear.step()
        ticks = tracer.status()["ticks"]
        wait_until(lambda seen=ticks: tracer.status()["ticks"] > seen + 1)
    return tracer, (dear, limited, *wanted)


def requests(tracer) -> dict[int, dict]:
    """By pid, of the processes that are traced."""
    rows = (row for row in tracer.ps() if row["process"]["state"] == "traced")
    return {row["process"]["pid"]: row["request"] for row in rows}


def attributes(tracer) -> dict[int, tuple]:
    """All that is to survive, as the request says it and as it is seen."""
    rows = {row["process"]["pid"]: row for row in tracer.ps() if row["process"]["state"] == "traced"}
    supervised = {row["pid"]: row for row in json.loads(tracer.control("policy", "--json"))["supervised"]}
    return {
        pid: (
            row["request"],
            row["limited"],
            row["process"]["labels"],
            *(supervised[pid][name] for name in ("mode", "rule", "state")),
        )
        for pid, row in rows.items()
    }


@pytest.mark.long
def test_every_attribute_outlives_the_daemon(world):
    """After SIGKILL, after an upgrade, and after a time in which the programs had stopped to record."""
    tracer, programs = world
    before = attributes(tracer)
    modes = sorted((request["mode"], request["rule"]) for request in requests(tracer).values())
    assert modes == [("auto", "manual"), ("exact", "manual"), ("exact", "rule 1"), ("sampled", "rule 2")]
    assert [request["live_blocks"] for request in requests(tracer).values()].count(1009) == 1
    assert any("over its budget" in limited for _request, limited, *_rest in before.values())

    def restart_and_compare(**changes) -> dict[int, int]:
        tracer.kill()
        tracer.configure(**changes)
        tracer.start()
        wait_until(lambda: attributes(tracer) == before)
        return {row["process"]["pid"]: row["adopted_count"] for row in tracer.ps()}

    assert set(restart_and_compare().values()) == {1}
    # Other limits are other programs, as those of another version are.
    assert set(restart_and_compare(limits={"sites": 1009}).values()) == {0}
    restart_and_compare(unattended_s=1)
    tracer.kill()
    killed_s = time.monotonic()
    wait_until(lambda: time.monotonic() > killed_s + 1.2)
    for program in programs:
        program.step()
    tracer.start()
    wait_until(lambda: attributes(tracer) == before)
    assert tracer.log.count("no daemon for too long") == len(before)
