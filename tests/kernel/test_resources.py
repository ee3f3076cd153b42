"""File descriptors and threads that become ever more."""

from __future__ import annotations

import json

import pytest

from .waiting import wait_until
from .workloads import build


@pytest.mark.long
def test_connections_and_threads_that_become_more(daemon, workload):
    """The process leaks them: the rate, their kind, and the call sites that open them, which are recorded
    once they grow.
    """
    tracer = daemon(history={"leak_after_s": 10})
    program = workload("holding")
    tracer.attach(program.pid)
    port = round(program.step()["port"])

    def told() -> bool:
        reason = tracer.top(program.pid)["process_verdict"]["reason"]
        return "opened at open_connection holding.c:" in reason and "threads grow" in reason

    wait_until(told, 60)
    report = tracer.top(program.pid)
    assert report["process_verdict"]["verdict"] == "leak"
    descriptors, threads = report["resources"]
    assert (descriptors["kind"], descriptors["verdict"]) == ("descriptors", "leak")
    assert 600 < descriptors["growth_per_min"] < 1400, "1,200 connections a minute, and 75 files"
    assert descriptors["shares"][0]["what"] == f"sockets to 127.0.0.1:{port}"
    assert descriptors["shares"][0]["share"] > 0.85
    assert {"files in /etc"} == {share["what"] for share in descriptors["shares"][1:]}
    site = report["descriptor_sites"][0]
    assert site["function"] == "open_connection"
    assert site["open_count"] == site["opened_count"] >= 10
    assert descriptors["limit"] > descriptors["count"] > 100
    assert threads["shares"][0]["what"] == "named waiting-N"
    assert tracer.events("descriptors.leak")[0]["pid"] == program.pid
    text = tracer.control("top", program.pid, "--once")
    assert f"sockets to 127.0.0.1:{port}" in text


def test_descriptors_of_a_process_that_is_only_watched(daemon, workload):
    """Counted if the configuration says so: growing ones are in `ps --all` and the log."""
    watch = {"interval_s": 0.2, "warmup_s": 0.5, "growth_window_s": 2}
    rules = [{"match": {"exe": str(build("holding").resolve())}, "mode": "watch"}]
    tracer = daemon(auto=watch, descriptors={"watched": True}, policy={"default": "off", "rules": rules})
    program = workload("holding")
    port = round(program.step()["port"])

    def reason() -> str:
        rows = json.loads(tracer.control("ps", "--all", "--json"))["watched"]
        return "".join(row["descriptors_reason"] for row in rows if row["pid"] == program.pid)

    wait_until(lambda: f"sockets to 127.0.0.1:{port}" in reason(), 30)
    assert reason().startswith("file descriptors grow: 1,")
    assert f"{program.pid} file descriptors grow" in tracer.control("ps", "--all")
    assert tracer.events("descriptors.growing")[0]["pid"] == program.pid
    assert not tracer.events("process.attached")
