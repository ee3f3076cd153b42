"""Runs the daemon for a benchmark."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from bench.targets import process_cpu_ns
from bpfleakd.api.client import DaemonClient
from bpfleakd.errors import BpfleakdError
from bpfleakd.kernel.pins import pinned_sets
from bpfleakd.kernel.probes.shared import group_of, remove_events
from bpfleakd.model.daemon import DaemonStats
from bpfleakd.model.process import TracingMode

T = TypeVar("T")

SETTLED_TICK_S = 5.0
"""Between the ticks of a daemon that has traced only samplers inside for ten minutes."""

_CACHE = Path(__file__).parents[1] / "build" / "bench" / "cache"

# Generous for a busy machine: the daemon may have to compile first.
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 20.0
_CALM_TIMEOUT_S = 15.0
_CALM_SHARE = 0.02


def ended_with_us(*command: object) -> list[str]:
    """The command for a process that ends with this one, even by SIGKILL."""
    return ["setpriv", "--pdeathsig", "TERM", *map(str, command)]


def free_port() -> int:
    """A TCP port that is currently free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class RunningDaemon:
    """bpfleakd with its own socket, pins and configuration, from `with` to its end.

    With `wait` False, the block begins as soon as the process exists. The next benchmark reuses its compiled
    programs, unless `cache_dir` is None.
    """

    def __init__(self, *, wait: bool = True, **configuration: Any) -> None:
        self._wait = wait
        self._directory = Path(tempfile.mkdtemp(prefix="bpfleakd-bench-"))
        self._pins = Path("/sys/fs/bpf") / f"bpfleakd-bench-{uuid.uuid4().hex[:8]}"
        self._log_path = self._directory / "log"
        self.socket = self._directory / "socket"
        # A census of ten million blocks takes long.
        self.client = DaemonClient(self.socket, timeout_s=120.0)
        defaults = {
            "socket": str(self.socket),
            "bpffs_dir": str(self._pins),
            "cache_dir": str(_CACHE),
            "state": {"dir": str(self._directory / "state")},
            "metrics": {"enabled": False},
            "policy": {"default": "off"},
        }
        self._config_path = self._directory / "config.yaml"
        self._config_path.write_text(json.dumps(defaults | configuration))  # JSON is YAML
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> RunningDaemon:
        command = ended_with_us(sys.executable, "-m", "bpfleakd.cli.bpfleakd", "--config", self._config_path)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if self._wait:
            try:
                self.wait_ready()
            except BaseException:
                self._end()
                raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self._end()

    def kill_and_restart(self) -> None:
        """End it by SIGKILL, and wait until the next one, which adopts its processes, answers."""
        assert self._process
        self._process.kill()
        self._process.wait()
        self.__enter__()

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it answers."""
        self.until(self.client.processes, _START_TIMEOUT_S)

    def until(self, question: Callable[[], T | None], timeout_s: float = 10.0, pause_s: float = 0.005) -> T:
        """Repeat a request until there is an answer that is not None, and no error."""
        deadline = time.monotonic() + timeout_s
        while True:
            assert self._process
            try:
                answer = question()
                if answer is not None:
                    return answer
                failure: Exception | None = None
            except (BpfleakdError, subprocess.CalledProcessError) as error:
                failure = error
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the daemon: {failure}\n{self._log_path.read_text()}")
            time.sleep(pause_s)

    def control(self, *arguments: object) -> str:
        """Run bpfleakctl; return what it printed. Raises CalledProcessError."""
        command = [
            sys.executable,
            "-m",
            "bpfleakd.cli.bpfleakctl",
            "--socket",
            self.socket,
            *map(str, arguments),
        ]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    @contextlib.contextmanager
    def attached(self, pid: int, mode: TracingMode = TracingMode.EXACT) -> Iterator[None]:
        """Trace a process until the block ends."""
        self.client.attach(pid, mode)
        try:
            yield
        finally:
            self.client.detach(pid)

    def events(self) -> list[dict[str, Any]]:
        """Its log so far."""
        lines = self._log_path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def traced_pids(self) -> set[int]:
        """The processes that were ever attached to, by its log."""
        return {event["pid"] for event in self.events() if event["event"] == "process.attached"}

    def attached_at_s(self, pid: int) -> float | None:
        """When the recording of a process began, by its log, in wall-clock time; None: not yet."""
        for event in self.events():
            if event["event"] == "process.attached" and event["pid"] == pid:
                return datetime.fromisoformat(event["timestamp"]).timestamp()
        return None

    def pinned(self, name: str) -> Path:
        """The path of the pin of a map or program."""
        (loaded,) = pinned_sets(self._pins)
        return loaded.directory / name

    def wait_ticks(self, count: int) -> list[DaemonStats]:
        """Wait for further ticks; returns the daemon's figures after each."""
        seen = [self.client.stats()]
        while len(seen) <= count:
            stats = self.client.stats()
            if stats.ticks != seen[-1].ticks:
                seen.append(stats)
            time.sleep(0.05)
        return seen[1:]

    def wait_calm(self) -> None:
        """Wait until the daemon and its children do no more than what each tick needs."""
        deadline = time.monotonic() + _CALM_TIMEOUT_S
        while self._busy_share() > _CALM_SHARE and time.monotonic() < deadline:
            pass

    def wait_detached(self) -> None:
        """Wait until nothing is traced and the daemon has removed what slows all system calls."""
        watched = [self.pinned("links") / name for name in ("sys_exit_mmap", "space_exit")]
        self.until(lambda: None if any(link.exists() for link in watched) else True)
        self.wait_calm()

    def _busy_share(self) -> float:
        """Of a core, over a second, which contains a tick."""
        before, began_s = _cpu_ns_of_tree(self.pid), time.monotonic()
        time.sleep(1.0)
        after = _cpu_ns_of_tree(self.pid)
        # A child that has ended took its time along: it was busy.
        used_ns = sum(ns - before.get(pid, 0) for pid, ns in after.items())
        return 1.0 if before.keys() - after.keys() else used_ns / (time.monotonic() - began_s) / 1e9

    def cpu_ns(self) -> int:
        """The processor time so far of the daemon and its children."""
        return sum(_cpu_ns_of_tree(self.pid).values())

    def resident_mb(self) -> dict[str, float]:
        """Resident memory in MB (2^20): VmRSS, RssAnon, and VmHWM, the peak of VmRSS."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.findall(r"^(VmRSS|RssAnon|VmHWM):\s+(\d+) kB$", status, re.MULTILINE)
        return {name: int(kilobytes) / 1024 for name, kilobytes in found}

    def _end(self) -> None:
        assert self._process
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)
        shutil.rmtree(self._pins, ignore_errors=True)
        remove_events(group_of(self._pins), wait_s=1)


def _cpu_ns_of_tree(pid: int) -> dict[int, int]:
    """The processor time so far of a process and those that descend from it."""
    found, left = {}, [pid]
    while left:
        one = left.pop()
        with contextlib.suppress(OSError):
            children = [path.read_text() for path in Path(f"/proc/{one}/task").glob("*/children")]
            left += map(int, " ".join(children).split())
            found[one] = process_cpu_ns(one)
    return found
