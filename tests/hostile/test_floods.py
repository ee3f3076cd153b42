"""Floods of events: a process of another user, traced too, that does one thing as often as it can."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..kernel.daemons import Daemon
from ..kernel.waiting import wait_until
from ..kernel.workloads import Workload
from .bystander import Bystander
from .floods import HOSTILE_S, attackers, expect_left_alone

KINDS = ("mmap", "exec", "fork")
# The end of these takes the tracing loop longer than a tick may.
LONG_KINDS = ("pieces", "threads", "stacks") if os.environ.get("HOSTILE_S") else ()


@pytest.mark.parametrize("kind", KINDS + LONG_KINDS)
def test_a_flood_of_one_process_disturbs_no_other(
    kind: str, flood: Path, daemon: Callable[..., Daemon], workload: Callable[..., Workload]
):
    """The bystander's figures are exact, answers prompt and ticks short; the flood's losses are counted."""
    rules = [{"match": {"exe": str(flood)}, "mode": "exact", "follow_children": True}]
    tracer = daemon(policy={"default": "off", "rules": rules})
    bystander = Bystander(tracer, workload("many_sites", 1, 23, 101))
    with expect_left_alone(bystander), attackers(flood, kind) as (pid,):
        if kind not in ("exec", "fork"):
            wait_until(lambda: tracer.process(pid), 30)
        deadline_s = time.monotonic() + HOSTILE_S
        while time.monotonic() < deadline_s:
            bystander.program.step(23)
    bystander.check()
    for event in ("tick.failed", "api.failed", "Traceback"):
        assert event not in tracer.log, tracer.log
