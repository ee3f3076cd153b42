"""Processes whose memory looks like a language runtime's, and is made to keep its reader busy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ..kernel.daemons import Daemon
from ..kernel.machine import need_tool
from ..kernel.waiting import wait_until
from .bystander import Bystander
from .floods import AT_LENGTH, attackers, expect_left_alone, notes_of, work_on

_HERE = Path(__file__).parent


@pytest.fixture
def forged_python(public_directory: Path, tracer: Daemon) -> list[object]:
    """The command. The daemon has seen a small one, and has loaded what it needs to read Python."""
    command = ["/usr/bin/python3", shutil.copy(_HERE / "forged_python.py", public_directory)]
    with attackers(*command, 1) as (pid,):
        tracer.attach(pid)
        tracer.top(pid)
    wait_until(lambda: (tracer.process(pid) or {}).get("process", {}).get("state") != "traced", 30)
    return command


def test_python_whose_lines_never_end(
    forged_python: list[object], tracer: Daemon, bystander: Bystander
) -> None:
    """Tables of lines of 4 MiB, in which one number has millions of digits."""
    functions = 1_000 if AT_LENGTH else 200
    with expect_left_alone(bystander), attackers(*forged_python, functions) as (pid,):
        tracer.attach(pid)
        wait_until(lambda: "hostile_" in str(tracer.top(pid)["sites"]), 60)
        work_on(bystander)


def test_a_jvm_whose_code_cannot_be_read(
    public_directory: Path, tracer: Daemon, bystander: Bystander
) -> None:
    """A code cache of 32 million blocks without memory, and thousands of names in a page each."""
    need_tool("gcc")
    source, program, library = (
        _HERE / "forged_jvm.c",
        public_directory / "forged_jvm",
        public_directory / "libjvm.so",
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-DFORGED", "-o", library, source], check=True)
    subprocess.run(["gcc", "-o", program, source], check=True)
    with expect_left_alone(bystander), attackers(program, library, count=4 if AT_LENGTH else 1) as pids:
        for pid in pids:
            tracer.attach(pid)
            wait_until(lambda pid=pid: "its collections are unknown" in notes_of(tracer, pid), 60)
        work_on(bystander)
