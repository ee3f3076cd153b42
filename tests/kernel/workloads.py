"""The programs of tests/workloads: built when their source changed, and driven a step at a time."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .machine import need_tool
from .waiting import PATIENCE

SOURCES = Path(__file__).parent.parent / "workloads"
BUILD = SOURCES.parents[1] / "build" / "workloads"


@contextmanager
def building_alone() -> Iterator[None]:
    """Hold the lock on build/: tests run in several processes, and two makes write the same files."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(name: str) -> Path:
    """Return the program `name`, compiled if its source is newer.

    Tests that run side by side have it under paths of their own, so that a policy of one does not match what
    another has started.
    """
    need_tool("make")
    need_tool("gcc")
    need_tool("g++")
    program = BUILD / name
    with building_alone():
        done = subprocess.run(
            ["make", "--silent", "-C", SOURCES, f"BUILD={BUILD}", str(program)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name} does not compile:\n{done.stderr}"
        return _own_name(program)


def _own_name(program: Path) -> Path:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return program
    own = program.parent / worker / program.name
    own.parent.mkdir(exist_ok=True)
    if not own.exists() or not own.samefile(program):
        own.unlink(missing_ok=True)
        own.hardlink_to(program)
    return own


def in_a_root_of_its_own(
    directory: Path, program: Path, arguments: Iterable[str | Path], files: Iterable[Path] = ()
) -> list[str]:
    """A command that runs `program` in a new mount namespace and root directory, on a new tmpfs.

    Its libraries and `files` have the same paths there.
    """
    need_tool("unshare")
    need_tool("chroot")
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    copied = [*re.findall(r"(/\S+) \(0x", listed), *files, program]
    copies = " && ".join(f"mkdir -p .{Path(file).parent} && cp {file} .{file}" for file in copied)
    command = " ".join(str(part) for part in (program, *arguments))
    script = f"mount -t tmpfs tmpfs {directory} && cd {directory} && {copies} && exec chroot . {command}"
    return ["unshare", "--mount", "sh", "-c", script]


class Workload:
    """A running workload; tests/workloads/workload.h has the protocol."""

    def __init__(self, command: Sequence[str | Path], *, cwd: Path | None = None) -> None:
        self.command = [str(part) for part in command]
        self._process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd
        )
        self._unread = b""
        self._ledger: dict | None = None
        self.wait_ready()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, timeout_s: float = 10.0) -> None:
        """Wait until the program reports that it is ready: its ledger begins here."""
        line = self._read_line(timeout_s)
        assert line == "ready", f"{self.command} said {line!r} instead of ready"

    def step(self, number: int | None = None, timeout_s: float = 120.0) -> dict:
        """Let the program do one step; return its ledger of all steps so far."""
        self.start_step(number)
        return self.finish_step(timeout_s)

    def start_step(self, number: int | None = None) -> None:
        """Start a step and do not wait."""
        self._write("run" if number is None else f"run {number}")

    def finish_step(self, timeout_s: float = 120.0) -> dict:
        """Wait for the step that was started."""
        self._ledger = json.loads(self._read_line(timeout_s))
        return self._ledger

    def ledger(self) -> dict:
        """The ledger of the last step."""
        assert self._ledger is not None, "no step was run yet"
        return self._ledger

    def exit(self) -> None:
        """Let the program end, which it must do with exit code 0."""
        self._write("exit")
        assert self._process.wait(timeout=30) == 0, self._account_of_end()

    def errors(self) -> str:
        """Its standard error; call this when it has ended."""
        return self._process.stderr.read().decode(errors="replace")

    def kill(self) -> None:
        """End it now, whatever it does; nothing if it has ended."""
        if self.is_alive:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()

    def _write(self, line: str) -> None:
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(self._account_of_end()) from None

    def _read_line(self, timeout_s: float) -> str:
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s * PATIENCE
        while b"\n" not in self._unread:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise AssertionError(f"{self.command} said nothing for {timeout_s} s")
            data = os.read(descriptor, 65536)
            if not data:
                raise AssertionError(self._account_of_end())
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()

    def _account_of_end(self) -> str:
        code = self._process.wait(timeout=30)
        return f"{self.command} ended with {code}: {self.errors()}"
