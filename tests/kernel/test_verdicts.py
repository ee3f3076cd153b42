"""Verdicts on a real program with known truth; `make verdicts` has many more."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .daemons import ControlFailed
from .machine import need_tool
from .waiting import wait_until
from .workloads import BUILD, SOURCES, building_alone

TRUTH = json.loads((SOURCES / "verdicts" / "several.json").read_text())


@pytest.fixture
def several() -> Iterator[subprocess.Popen]:
    """A program with a leak, a cache, a queue and churn, that waits for a line."""
    need_tool("make")
    program = BUILD / "verdicts" / "several-O2"
    with building_alone():
        subprocess.run(
            ["make", "--silent", "-C", SOURCES / "verdicts", f"BUILD={program.parent}", program], check=True
        )
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == f"ready {process.pid}\n"
    yield process
    process.kill()
    process.communicate()


def test_a_leak_is_told_from_a_cache_a_queue_and_churn(daemon, several, tmp_path: Path):
    """Each has its verdict soon, nothing else was ever called a leak, and the log says it once."""
    # given a daemon that calls growth of ten seconds a leak
    tracer = daemon(history={"leak_after_s": 10})
    tracer.attach(several.pid)
    several.stdin.write("\n")
    several.stdin.flush()

    # when it watches
    deadline, verdicts, called = time.monotonic() + 60, {}, set()
    while not is_right(verdicts) and time.monotonic() < deadline:
        tracer.tick_for_s(2)
        report = tracer.top(several.pid)
        verdicts = {site["function"]: site["verdict"] for site in report["sites"]}
        called |= {function for function, verdict in verdicts.items() if verdict == "leak"}

    # then every function has the verdict that is right
    assert is_right(verdicts), report
    assert called == {"leak"}
    assert report["process_verdict"]["verdict"] == "leak"
    assert report["sites"][0]["function"] == "leak"
    assert report["sites"][0]["leak_bytes_per_s"] == pytest.approx(230 / 0.2, rel=0.35)

    # and a script learns it by the exit code
    with pytest.raises(ControlFailed) as failed:
        tracer.control("attach", several.pid, "--wait", "--for", "0s")
    assert failed.value.exit_code == 20
    assert failed.value.stdout.endswith("verdict: leak (exit code 20)\n")

    # and a saved history is judged alike, without the daemon
    saved = tmp_path / "history.json"
    tracer.control("history", "--pid", several.pid, "-o", saved)
    again = json.loads(tracer.control("analyze", saved, "--json"))
    assert [site["function"] for site in again["sites"] if site["verdict"] == "leak"] == ["leak"]

    # and the log has it, once
    wait_until(lambda: tracer.events("site.leak"))
    tracer.tick_for_s(6)
    assert len(tracer.events("site.leak")) == 1


def is_right(verdicts: dict[str, str]) -> bool:
    return all(verdicts.get(function) in right for function, right in TRUTH.items())


def test_a_leak_that_fills_the_table_of_blocks_stays_one(daemon, workload):
    """Its rate is kept; the answer says that nothing new is recorded, what memory does, and what helps."""
    tracer = daemon(history={"leak_after_s": 10}, limits={"live_blocks": 1_000})
    program = workload("growing", "leak")
    tracer.attach(program.pid)
    program.start_step(4_000)

    def is_full() -> bool:
        return tracer.top(program.pid)["losses"]["live_full"] > 700

    wait_until(is_full, timeout_s=120)
    report = tracer.top_after_tick(program.pid)
    site, reason = report["sites"][0], report["process_verdict"]["reason"]
    assert (site["function"], site["verdict"]) == ("never_freed", "leak"), report
    assert site["leak_bytes_per_s"] == pytest.approx(
        report["process_verdict"]["memory_bytes_per_s"], rel=0.35
    )
    assert "the table of live blocks is full" in site["reason"]
    assert "the table of live blocks has been full for" in reason
    assert "memory grows" in reason.rpartition(" has been full for ")[2]
    assert "--mode sampled" in reason
