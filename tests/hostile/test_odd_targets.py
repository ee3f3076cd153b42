"""Processes in odd states and with odd names: attached to, or refused with a reason, without delay for
others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ..kernel.daemons import ControlFailed, Daemon
from .bystander import Bystander
from .floods import at_length, attackers

_OF_NO_FILE = """
import os, sys
number = os.memfd_create("\\x1b[31mred")
os.write(number, open(sys.argv[1], "rb").read())
os.execv(f"/proc/self/fd/{number}", ["\\x1b[2J\\n<b>", "late", sys.argv[1]])
"""


def _stopped(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def _deleted(pid: int) -> None:
    Path(os.readlink(f"/proc/{pid}/exe")).unlink()


@pytest.mark.parametrize("make_odd", [_stopped, pytest.param(_deleted, marks=at_length)])
def test_an_odd_target(
    make_odd: Callable[[int], None], flood: Path, tracer: Daemon, bystander: Bystander
) -> None:
    """A stopped process, or one without its program's file, is attached to and detached from."""
    with bystander.during_attack(), attackers(flood, "late", flood) as (pid,):
        if tracer.process(pid):
            tracer.detach(pid)
        make_odd(pid)
        attach(tracer, pid)
        bystander.program.step(23)
        bystander.tracer.top_after_tick(bystander.program.pid)
        tracer.detach(pid)


def test_names_without_a_file(flood: Path, tracer: Daemon, bystander: Bystander) -> None:
    """A program in memory, with escape sequences in its name and command line, which reach no terminal."""
    with (
        bystander.during_attack(),
        attackers("/usr/bin/python3", "-c", _OF_NO_FILE, flood) as (pid,),
    ):
        attach(tracer, pid)
        bystander.program.step(23)
        bystander.tracer.top_after_tick(bystander.program.pid)
        shown = tracer.control("ps") + tracer.control("top", "--pid", pid, "--once")
        assert "\x1b[3" not in shown
        assert "\x1b[2J" not in shown
        assert "\x1b" not in tracer.log
        tracer.detach(pid)


def attach(tracer: Daemon, pid: int) -> None:
    """Attach, unless a rule has done so."""
    try:
        tracer.attach(pid)
    except ControlFailed as error:
        if "traced already" not in error.stderr:
            raise
