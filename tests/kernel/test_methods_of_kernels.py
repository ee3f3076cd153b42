"""bpfleakd uses the best attach method that this kernel is known to have."""

from __future__ import annotations

import platform
import re

KERNEL = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


def best_method() -> str:
    """Sessions came with 6.13; multi with 6.6, and looked at the thread instead of the process until 6.10."""
    if KERNEL >= (6, 13):
        return "session"
    return "multi" if KERNEL >= (6, 10) else "perf"


def best_walker() -> str:
    """The instruction may_goto came with 6.9."""
    return "may_goto" if KERNEL >= (6, 9) else "tail_calls"


def test_the_best_way_to_attach_is_taken(daemon, workload):
    """Nothing better was passed over but for what this kernel has not got."""
    tracer = daemon()
    program = workload("churn")
    tracer.attach(program.pid)

    assert tracer.process(program.pid)["attach_method"] == best_method(), tracer.log
    assert tracer.events("kernel.fallback") == []
    assert [event["walker"] for event in tracer.events("kernel.loaded")] == [best_walker()]
