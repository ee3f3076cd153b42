"""Floods of events: a process of another user, traced too, that does one thing as often as it can."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ..kernel.daemons import Daemon
from ..kernel.waiting import wait_until
from .bystander import Bystander
from .floods import HOSTILE_S, at_length, attackers, expect_left_alone

KINDS = ("mmap", "exec", "fork")
LONG_KINDS = ("pieces", "threads", "stacks")


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=at_length) for kind in LONG_KINDS)])
def test_a_flood_of_one_process_disturbs_no_other(
    kind: str, flood: Path, tracer: Daemon, bystander: Bystander
):
    """The bystander's figures are exact, answers prompt and ticks short; the flood's losses are counted."""
    with expect_left_alone(bystander), attackers(flood, kind) as (pid,):
        if kind not in ("exec", "fork"):
            wait_until(lambda: tracer.process(pid), 30)
        deadline_s = time.monotonic() + HOSTILE_S
        while time.monotonic() < deadline_s:
            bystander.program.step(23)
            bystander.tracer.top_after_tick(bystander.program.pid)
