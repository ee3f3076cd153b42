"""A daemon under test: a real process with its own socket, pins and configuration."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bpfleakd.api.client import DaemonClient
from bpfleakd.errors import BpfleakdError

from .kernel_objects import KernelObjects, objects_held_by, objects_pinned_below, wait_until_gone
from .waiting import PATIENCE, wait_until

BPFFS_ROOT = Path("/sys/fs/bpf")
# Until all call sites have names, also on a machine that others keep busy. Times PATIENCE.
_NAMES_S = 20.0
_START_TIMEOUT_S = 30.0 * PATIENCE
# Perf events go one by one, with a grace period of the kernel's each.
_STOP_TIMEOUT_S = 60.0 * PATIENCE
_ALL_SITES = 1_000_000


class DaemonFailed(Exception):
    """The daemon ended, or did not come up."""

    def __init__(self, exit_code: int | None, log: str) -> None:
        super().__init__(f"bpfleakd ended with {exit_code}:\n{log}")
        self.exit_code = exit_code
        self.log = log


class ControlFailed(Exception):
    """bpfleakctl ended with another exit code than 0."""

    def __init__(self, arguments: tuple[str, ...], exit_code: int, stderr: str, stdout: str = "") -> None:
        super().__init__(f"bpfleakctl {' '.join(arguments)} ended with {exit_code}: {stderr}")
        self.exit_code = exit_code
        self.stderr = stderr
        self.stdout = stdout


@dataclass
class Daemon:
    """bpfleakd in the foreground. `start()` waits until it answers; `stop()` checks what it leaves behind."""

    directory: Path
    bpffs_dir: Path
    configuration: dict[str, Any]
    prefix: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.socket = Path(self.configuration["socket"])
        self.log_path = self.directory / "daemon.log"
        self._process: subprocess.Popen | None = None
        self._seen = KernelObjects()
        self._refusal = "no socket"
        self._config_path = self.directory / "bpfleakd.yaml"

    # -- its life ------------------------------------------------------------------------------------------

    def start(self, *arguments: str) -> Daemon:
        """Start it and wait until it answers. Raises DaemonFailed."""
        self.launch(*arguments)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None:
                raise DaemonFailed(self._process.returncode, self.log)
            if time.monotonic() > deadline:
                self.kill()
                raise DaemonFailed(
                    None, f"it did not answer within {_START_TIMEOUT_S} s: {self._refusal}\n{self.log}"
                )
            time.sleep(0.02)
        self.note_objects()
        return self

    def launch(self, *arguments: str) -> None:
        """Start it, and do not wait for anything."""
        self.configure()
        command = [sys.executable, "-m", "bpfleakd.cli.bpfleakd", "--config", self._config_path, *arguments]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
            )

    def configure(self, **changes: Any) -> None:
        """Write the configuration file, with changes."""
        self.configuration |= changes
        self._config_path.write_text(json.dumps(self.configuration))  # JSON is YAML

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def events(self, name: str) -> list[dict]:
        """Its log entries of one kind of event, oldest first."""
        lines = (line for line in self.log.splitlines() if f'"{name}"' in line)
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def kill(self, *, note: bool = True) -> None:
        """End it by SIGKILL, as an out-of-memory killer would: nothing is cleaned up.

        `note`: remember what it had in the kernel, which takes half a second.
        """
        if note:
            self.note_objects()
        self._process.kill()
        self._process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal: exit code 0, no pin, no BPF object of it left."""
        self.end(number)
        self.check_nothing_left()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal: exit code 0."""
        assert self.is_alive, f"the daemon had ended by itself:\n{self.log}"
        self.note_objects()
        self._process.send_signal(number)
        self.wait_for_end(number)

    def wait_for_end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Wait until it has ended after a signal: exit code 0."""
        assert self._process is not None
        try:
            exit_code = self._process.wait(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"no end within {_STOP_TIMEOUT_S} s after {number.name}:\n{self.log}"
            ) from None
        assert exit_code == 0, f"exit code {exit_code} after {number.name}:\n{self.log}"
        assert "Traceback" not in self.log, self.log

    def note_objects(self) -> KernelObjects:
        """Return the BPF objects that are its own now, and remember them for the check at the end."""
        now = KernelObjects()
        if self.is_alive:
            now.add(objects_held_by(self.pid))
        now.add(objects_pinned_below(self.bpffs_dir))
        self._seen.add(now)
        return now

    def check_nothing_left(self) -> None:
        """Fail if a pin below its directory or an object that was ever seen still exists."""
        pins = sorted(str(path) for path in self.bpffs_dir.rglob("*") if not path.is_dir())
        assert pins == [], "pins are left"
        left = wait_until_gone(self._seen)
        assert not left, f"left in the kernel: {left}"

    def clean_up(self) -> subprocess.CompletedProcess:
        """Run `bpfleakd --cleanup`."""
        return subprocess.run(
            [sys.executable, "-m", "bpfleakd.cli.bpfleakd", "--config", self._config_path, "--cleanup"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=self._environment(),
        )

    # -- its commands --------------------------------------------------------------------------------------

    def control(self, *arguments: str | int, timeout_s: float = 60.0) -> str:
        """Run bpfleakctl and return what it printed. Raises ControlFailed."""
        texts = tuple(str(argument) for argument in arguments)
        done = subprocess.run(
            [sys.executable, "-m", "bpfleakd.cli.bpfleakctl", "--socket", self.socket, *texts],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s * PATIENCE,
            env=self._environment(),
        )
        if done.returncode != 0:
            raise ControlFailed(texts, done.returncode, done.stderr, done.stdout)
        return done.stdout

    def attach(self, pid: int, *options: str) -> None:
        self.control("attach", pid, *options)
        self.note_objects()

    def attach_with_tables(self, pid: int, *options: str) -> None:
        """Attach and have all unwind tables: a slow machine may take longer for them than an attach waits."""
        while self._attach_lacks_tables(pid, *options):
            self.detach(pid)

    def _attach_lacks_tables(self, pid: int, *options: str) -> bool:
        before = self.log.count("unwind.not-ready")
        self.attach(pid, *options)
        return self.log.count("unwind.not-ready") > before

    def detach(self, pid: int) -> None:
        self.note_objects()
        self.control("detach", pid)

    def status(self) -> dict:
        """The daemon's own figures."""
        return msgspec.to_builtins(DaemonClient(self.socket).stats())

    def ps(self) -> list[dict]:
        """The traced processes."""
        return json.loads(self.control("ps", "--json"))["processes"]

    def process(self, pid: int) -> dict | None:
        """The row of `ps` of one process."""
        return next((row for row in self.ps() if row["process"]["pid"] == pid), None)

    def supervised(self, pid: int) -> dict | None:
        """The policy's decision on one process, and the reason."""
        rows = json.loads(self.control("policy", "--json"))["supervised"]
        return next((row for row in rows if row["pid"] == pid), None)

    def top(self, pid: int, *, limit: int = _ALL_SITES) -> dict:
        """The report of one process, with all its sites."""
        wanted = ("--once", "--json", "--limit", limit, "--no-suppressions")
        deadline = time.monotonic() + _NAMES_S * PATIENCE
        while True:
            report = json.loads(self.control("top", "--pid", pid, *wanted))
            # An answer waits some seconds for names; on a busy machine and in emulation they take longer.
            if not report["names_pending"] or time.monotonic() > deadline:
                return report

    def top_after_tick(self, pid: int) -> dict:
        """The report, after everything that has happened until now was read."""
        self.wait_for_ticks(2)  # the first of them may have begun before
        return self.top(pid)

    def tick_for_s(self, seconds: float) -> None:
        """Wait until ticks that cover this much time have ended."""
        self.wait_for_ticks(math.ceil(seconds / self.configuration["tick_s"]))

    def wait_for_ticks(self, count: int) -> None:
        """Wait until this many more ticks have ended."""
        before, tick_s = self.status()["ticks"], self.configuration["tick_s"]
        wait_until(lambda: self.status()["ticks"] >= before + count, 15 + 5 * count * tick_s)

    def groups(self, pid: int, by: str) -> dict:
        """All groups of one process."""
        return json.loads(
            self.control("top", "--pid", pid, "--json", "--limit", 0, "--group", by, "--no-suppressions")
        )

    def blocks(self, pid: int, *options: str | int) -> dict:
        """The outstanding blocks of one process."""
        return json.loads(self.control("report", "--pid", pid, "--json", "--no-suppressions", *options))

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        try:
            DaemonClient(self.socket).processes()
        except BpfleakdError as failure:
            self._refusal = str(failure)
            return False
        return True

    @staticmethod
    def _environment() -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BPFLEAKD_")}
        return {**kept, "COLUMNS": "200"}


def maps_of(tracer: Daemon, pid: int) -> dict:
    """What `bpfleakctl maps` says about a process."""
    return json.loads(tracer.control("maps", "--pid", pid, "--json"))


def expect_heap_grew(tracer: Daemon, pid: int, least_bytes: int) -> None:
    """The heap of a process has grown by so much resident memory, and no other memory has."""
    grown = {use["use"]: use["resident_growth_bytes"] for use in maps_of(tracer, pid)["uses"]}
    assert grown["heap"] > least_bytes
    assert not grown.get("commit")
    assert not grown.get("mmap")
