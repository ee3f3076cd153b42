"""What changed in a real program since an earlier time, and since another run of it."""

from __future__ import annotations

import json
import time


def leaking(report: dict) -> dict:
    (site,) = [site for site in report["sites"] if site["function"] == "never_freed"]
    return {name: site[name] for name in ("change", "before_count", "after_count")}


def test_since_a_time_and_since_another_process(daemon, workload, tmp_path):
    """To the block: between two moments of a process, and between two runs of the program."""
    # given a program that leaks 100 blocks, does nothing for a while, and leaks 30 more
    tracer = daemon(state={"dir": str(tmp_path / "state")})
    program = workload("growing", "leak")
    tracer.attach(program.pid)
    program.step(100)
    tracer.wait_for_ticks(10)
    calm = time.monotonic()
    tracer.wait_for_ticks(10)
    program.step(30)

    # then new allocations are shown, with the precision of the figures
    ago_s = time.monotonic() - calm
    report = json.loads(tracer.control("diff", "--pid", program.pid, "--from", f"{ago_s:.3f}", "--json"))
    assert leaking(report) == {"change": "grown", "before_count": 100, "after_count": 130}
    assert 0 < report["before"]["resolution_s"] < 10
    whole = json.loads(tracer.control("diff", "--pid", program.pid, "--json"))
    assert leaking(whole) == {"change": "new", "before_count": 0, "after_count": 130}

    # and another process of the program is compared with the report that was kept of the first
    program.exit()
    tracer.control("detach", program.pid)
    (kept,) = json.loads(tracer.control("reports", "--json"))["reports"]
    later = workload("growing", "leak")
    tracer.attach(later.pid)
    later.step(23)
    report = json.loads(tracer.control("diff", kept["id"], "--pid", later.pid, "--json"))
    assert leaking(report) == {"change": "shrunk", "before_count": 130, "after_count": 23}
    assert (report["before"]["pid"], report["after"]["pid"]) == (program.pid, later.pid)


def test_new_since_the_last_deploy(daemon, workload, tmp_path):
    """A later build of the program: moved functions are matched, and added ones are new."""
    tracer = daemon(state={"dir": str(tmp_path / "state")})
    first = workload("deployed-1/deployed")
    tracer.attach(first.pid)
    first.step(23)
    tracer.top_after_tick(first.pid)
    tracer.control("detach", first.pid)
    (kept,) = json.loads(tracer.control("reports", "--json"))["reports"]

    second = workload("deployed-2/deployed")
    tracer.attach(second.pid)
    second.step(23)
    tracer.top_after_tick(second.pid)
    report = json.loads(tracer.control("diff", kept["id"], "--pid", second.pid, "--json"))

    changes = {
        site["function"]: (site["change"], site["before_bytes"], site["after_bytes"])
        for site in report["sites"]
    }
    assert changes == {
        "keep_session": ("grown", 23 * 1009, 23 * 2018),
        "brought_in": ("new", 0, 23 * 211),
        "taken_out": ("gone", 23 * 211, 0),
    }
    assert report["built_anew"] == ["deployed"]
    told = tracer.control("diff", kept["id"], "--pid", second.pid)
    assert "because these files were rebuilt: deployed" in told
    assert "1 new, 1 grown, 0 shrunk, 1 gone, 1 unchanged" in told
