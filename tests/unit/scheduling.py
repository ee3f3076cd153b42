"""Scheduling classes that tests may expect on this machine."""

from __future__ import annotations

import os
import subprocess


def may_return_from_idle() -> bool:
    """Whether the kernel lets this process' threads return from idle priority: in a child."""
    change = "import os; p = os.sched_param(0); [os.sched_setscheduler(0, x, p) for x in (os.SCHED_IDLE, 0)]"
    return not subprocess.run(["python3", "-c", change], check=False, stderr=subprocess.DEVNULL).returncode


IDLE = os.SCHED_IDLE if may_return_from_idle() else os.SCHED_OTHER
