"""Automatic tracing over several windows, in seconds in place of minutes."""

from __future__ import annotations

import json

from ..kernel.waiting import wait_until
from ..kernel.workloads import build

AUTO = {
    "interval_s": 0.2,
    "warmup_s": 0.5,
    "growth_window_s": 4,
    "growth_min_bytes": 1 << 20,
    "windows": 1,
    "window_s": 25,
    "pause_s": 3,
}


def test_a_second_window_goes_on_with_what_the_first_one_knew(daemon, workload):
    """The leak that the first has found is one in the first verdict of the second, and logged once."""
    rule = {"match": {"exe": str(build("growing").resolve())}, "mode": "auto"}
    policy = {"default": "off", "rules": [rule]}
    tracer = daemon(auto=AUTO, history={"leak_after_s": 10}, policy=policy)
    program = workload("growing", "leak")
    program.start_step(100_000)

    def leak_in_window(number: int) -> dict | None:
        """The leak, while that window is open."""
        rows = json.loads(tracer.control("ps", "--all", "--json"))["watched"]
        if [(row["windows"], row["state"]) for row in rows] != [(number, "window")]:
            return None
        report = tracer.top(program.pid)
        leaks = [site for site in report["sites"] if site["verdict"] == "leak"]
        return report | {"leak": leaks[0]} if leaks else None

    first = wait_until(lambda: leak_in_window(1), 60)
    assert "earlier window" not in first["leak"]["reason"]
    second = wait_until(lambda: leak_in_window(2), 60)
    assert "leaked in an earlier window" in second["leak"]["reason"]
    assert second["process"]["attached_s"] < 10
    assert second["leak"]["function"] == "never_freed"
    print(f"a leak {second['process']['attached_s']:.1f} s after the second window began")

    again = wait_until(lambda: (found := leak_in_window(2)) and "earlier" not in found["leak"]["reason"], 60)
    assert again
    assert tracer.log.count('"site.leak"') == 1
