"""Programs and memory on a file system whose server does not answer: no other process is delayed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bpfleakd.process.files.mapped_files import OpenedFile

from ..kernel.daemons import Daemon
from ..kernel.machine import cannot_run
from ..kernel.truth import expect_ledger
from ..kernel.waiting import wait_until
from ..kernel.workloads import Workload
from .bystander import Bystander
from .floods import HOSTILE_S, at_length, attackers, expect_left_alone, notes_of

MANY = 1 << 20


@contextlib.contextmanager
def silent_file(
    mount_point: Path, content: Path, *, opens: int = MANY, reads: int = MANY, names: int = MANY
) -> Iterator[Path]:
    """A file with a limited number of opens and reads that return, and of look-ups of other names in its
    directory.
    """
    if not os.path.exists("/dev/fuse"):
        cannot_run("there is no /dev/fuse")
    mount_point.mkdir()
    script = Path(__file__).with_name("silent_server.py")
    server = subprocess.Popen(
        [sys.executable, script, mount_point, content, str(opens), str(reads), str(names)],
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


@pytest.fixture
def silent_flood(public_directory: Path, flood: Path) -> Iterator[Path]:
    """The program at a path that can be opened once; the second open never returns."""
    with silent_file(public_directory / "floods", flood, opens=1) as file:
        yield file


@pytest.fixture
def silent_page(public_directory: Path, flood: Path) -> Iterator[Path]:
    """A file that can be mapped; its pages never come."""
    with silent_file(public_directory / "pages", flood, reads=0) as file:
        yield file


def test_a_server_that_never_answers(silent_flood: Path, tracer: Daemon, bystander: Bystander) -> None:
    """The daemon opens the file in a thread, which hangs; the loop continues."""
    with expect_left_alone(bystander), attackers(silent_flood, "files", "/") as (pid,):
        wait_until(lambda: "does not answer" in reason_of(tracer, pid), 30)
        deadline_s = time.monotonic() + HOSTILE_S
        while time.monotonic() < deadline_s:
            bystander.program.step(23)
            bystander.tracer.top_after_tick(bystander.program.pid)
        assert "does not answer" in reason_of(tracer, pid)


@pytest.mark.parametrize("silent", ["silent_flood", "silent_page"])
def test_code_that_comes_later_and_never_answers(
    silent: str, flood: Path, tracer: Daemon, bystander: Bystander, request: pytest.FixtureRequest
) -> None:
    """A traced process maps a file whose second open, or first read, never returns: it stays traced."""
    file: Path = request.getfixturevalue(silent)
    with expect_left_alone(bystander), attackers(flood, "late", file) as (pid,):
        wait_until(lambda: (tracer.supervised(pid) or {}).get("state") == "traced", 30)
        deadline_s = time.monotonic() + HOSTILE_S
        while time.monotonic() < deadline_s:
            os.kill(pid, signal.SIGUSR1)
            bystander.program.step(23)
            bystander.tracer.top_after_tick(bystander.program.pid)
            tracer.top(pid)
        assert (tracer.supervised(pid) or {}).get("state") == "traced"


def test_memory_that_never_answers(
    silent_page: Path, flood: Path, tracer: Daemon, bystander: Bystander
) -> None:
    """The daemon reads it in another process; the attacker can still be detached from, and ends."""
    with expect_left_alone(bystander), attackers(flood, "page", silent_page, count=2) as pids:
        for pid in pids:
            wait_until(lambda pid=pid: "does not answer" in notes_of(tracer, pid), 30)
        deadline_s = time.monotonic() + HOSTILE_S
        while time.monotonic() < deadline_s:
            bystander.program.step(23)
            bystander.tracer.top_after_tick(bystander.program.pid)
        tracer.detach(pids[0])


@at_length
def test_a_daemon_whose_reader_waits_can_end(
    silent_page: Path, flood: Path, daemon: Callable[..., Daemon], workload: Callable[..., Workload]
) -> None:
    """Killed or stopped, while a page is waited for; the next one finds locks and ports free."""
    tracer, program = daemon(), workload("many_sites", 1, 23, 101)
    tracer.attach_with_tables(program.pid)
    with attackers(flood, "page", silent_page) as (pid,):
        tracer.attach(pid)
        wait_until(lambda: "does not answer" in notes_of(tracer, pid))
        program.step(23)
        tracer.kill()
        tracer.start()
        report = tracer.top_after_tick(program.pid)
        expect_ledger(report, program.ledger())
        tracer.stop()
        assert not tracer.is_alive


def test_a_temporary_directory_that_never_answers(
    public_directory: Path, flood: Path, tracer: Daemon, bystander: Bystander
) -> None:
    """Perf maps and sockets of runtimes are looked up there, at the attach and with every reading."""
    script = 'mount --bind "$0" /tmp && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"'
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(silent_file(public_directory / "names", flood, names=0)).parent
        command = ["unshare", "--mount", "sh", "-c", script, silent, flood, "late", flood]
        # The shell must find its commands without a look into the directory.
        place = {"cwd": "/", "env": {"PATH": os.defpath}}
        process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL, **place))
        stack.callback(process.kill)
        with expect_left_alone(bystander):
            wait_until(lambda: "does not answer" in notes_of(tracer, process.pid), 30)
            deadline_s = time.monotonic() + HOSTILE_S
            while time.monotonic() < deadline_s:
                bystander.program.step(23)
                bystander.tracer.top_after_tick(bystander.program.pid)
                tracer.top(process.pid)
            assert (tracer.supervised(process.pid) or {}).get("state") == "traced"
            process.kill()


def reason_of(tracer: Daemon, pid: int) -> str:
    """Why a process is not traced."""
    return (tracer.supervised(pid) or {}).get("reason") or ""


def test_a_file_whose_server_has_ended(public_directory: Path, flood: Path, monkeypatch) -> None:
    """Closing it fails with an error that the daemon ignores; the descriptor is closed."""
    unheard: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unheard.append)
    with silent_file(public_directory / "ended", flood) as file:
        opened = OpenedFile(os.open(file, os.O_RDONLY), "a process")
        descriptor = opened.descriptor
    del opened
    assert not os.path.exists(f"/proc/self/fd/{descriptor}")
    assert unheard == []
