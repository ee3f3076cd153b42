"""Programs on a file system whose server does not answer: they are not traced, and nobody else waits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..kernel.daemons import Daemon
from ..kernel.machine import cannot_run
from ..kernel.waiting import wait_until
from .bystander import Bystander
from .floods import HOSTILE_S, attackers, expect_left_alone


@pytest.fixture
def silent_flood(public_directory: Path, flood: Path) -> Iterator[Path]:
    """The program where it can be opened once; the second open never returns."""
    if not os.path.exists("/dev/fuse"):
        cannot_run("there is no /dev/fuse")
    mount_point = public_directory / "floods"
    mount_point.mkdir()
    script = Path(__file__).with_name("silent_server.py")
    server = subprocess.Popen(
        [sys.executable, script, mount_point, flood, "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == "mounted\n"
        yield mount_point / "file"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        subprocess.run(["umount", "--lazy", mount_point], check=False)


def test_a_server_that_never_answers(silent_flood: Path, tracer: Daemon, bystander: Bystander) -> None:
    """The daemon opens the file, which hangs, in a thread: the loop goes on."""
    with expect_left_alone(bystander), attackers(silent_flood, "files", "/") as (pid,):
        wait_until(lambda: "does not answer" in reason_of(tracer, pid), 30)
        deadline_s = time.monotonic() + HOSTILE_S
        while time.monotonic() < deadline_s:
            bystander.program.step(23)
            bystander.tracer.top_after_tick(bystander.program.pid)
        assert "does not answer" in reason_of(tracer, pid)


def reason_of(tracer: Daemon, pid: int) -> str:
    """Why a process is not traced."""
    return (tracer.supervised(pid) or {}).get("reason") or ""
