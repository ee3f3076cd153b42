"""Fixtures: a private daemon, and programs to trace. Each cleans up and checks what remains."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bpfleakd.kernel.probes.shared import group_of, remove_events

from .daemons import BPFFS_ROOT, Daemon
from .inside_library import library
from .machine import bpftool_path, cannot_run, why_not_here
from .waiting import PATIENCE
from .workloads import BUILD, Workload, build

# An emulated machine has more to do than ticks.
TICK_S = 0.2 * min(PATIENCE, 5.0)
NAMES_S = 8.0 * PATIENCE


# The daemon takes these only if the configuration names them, or the kernel has nothing better.
OTHER_WAYS = {"multi", "perf", "tail_calls"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of other ways to attach and to walk are long ones: they repeat those of the best way."""
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            ways = {way for way in item.callspec.params.values() if isinstance(way, str)}
            if ways & OTHER_WAYS:
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session", autouse=True)
def _machine() -> None:
    """Every test in here needs a machine that can load BPF."""
    reason = why_not_here()
    if reason is not None:
        cannot_run(reason)
    bpftool_path()


def place_of_daemon(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """A directory and a place for pins of a daemon's own, and its configuration."""
    directory = tmp_path_factory.mktemp("daemon")
    bpffs_dir = BPFFS_ROOT / f"bpfleakd-test-{uuid.uuid4().hex[:8]}"
    configuration = {
        "socket": str(directory / "bpfleakd.sock"),
        "bpffs_dir": str(bpffs_dir),
        # The compiler is slow, and the same for all.
        "cache_dir": str(BUILD / "cache"),
        "tick_s": TICK_S,
        "metrics": {"enabled": False},
        "policy": {"default": "off"},
        "state": {"dir": None},
        "limits": {"names_s": NAMES_S},
    }
    return directory, bpffs_dir, configuration


@contextmanager
def running_daemon(directory: Path, bpffs_dir: Path, configuration: dict[str, Any]) -> Iterator[Daemon]:
    """A daemon that is stopped at the end, and must end well; nothing of it stays behind in any case."""
    running = Daemon(directory, bpffs_dir, configuration)
    try:
        yield running.start()
        running.stop()
    finally:
        if running.is_alive:
            running.kill()
        shutil.rmtree(running.bpffs_dir, ignore_errors=True)
        remove_events(group_of(running.bpffs_dir), wait_s=1)


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Daemon]]:
    """A factory of daemons: `daemon(attach_method="multi")`, keys as in the configuration file.

    At the end each that still runs gets a SIGTERM, must end with 0 and leave nothing in the kernel.
    """
    daemons: list[Daemon] = []

    def start(*arguments: str, **configuration: Any) -> Daemon:
        directory, bpffs_dir, defaults = place_of_daemon(tmp_path_factory)
        daemons.append(
            Daemon(directory, Path(configuration.get("bpffs_dir", bpffs_dir)), defaults | configuration)
        )
        return daemons[-1].start(*arguments)

    yield start

    failures = []
    for daemon in daemons:
        try:
            if daemon.is_alive:
                daemon.stop()
        except AssertionError as failure:
            failures.append(str(failure))
        finally:
            if daemon.is_alive:
                daemon.kill()
            if daemon.bpffs_dir.is_relative_to(BPFFS_ROOT) and daemon.bpffs_dir != BPFFS_ROOT:
                shutil.rmtree(daemon.bpffs_dir, ignore_errors=True)
                remove_events(group_of(daemon.bpffs_dir), wait_s=1)
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all tests of a file: it is like that that it is used, and it starts once."""
    with running_daemon(*place_of_daemon(tmp_path_factory)) as running:
        yield running


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """A factory of running programs: `service("java", "Shop")`; each has said that it is ready.

    They read and write lines of bytes; all are killed at the end.
    """
    started: list[subprocess.Popen] = []

    def start(*command: str | Path) -> subprocess.Popen:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([*map(str, command)], cwd=tmp_path, stdin=pipe, stdout=pipe))
        assert started[-1].stdout.readline() == b"ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture
def started() -> Iterator[Callable[..., Workload]]:
    """A factory of running programs by their commands; all are killed at the end."""
    running: list[Workload] = []

    def start(*command: object) -> Workload:
        running.append(Workload([str(word) for word in command]))
        return running[-1]

    yield start
    for program in running:
        program.kill()


@pytest.fixture
def workload(started: Callable[..., Workload]) -> Callable[..., Workload]:
    """A factory of running workloads: `workload("churn", 2)`."""
    return lambda name, *arguments: started(build(name), *arguments)


@pytest.fixture
def preloaded(started: Callable[..., Workload]) -> Callable[..., Workload]:
    """A factory of workloads with libbpfleak.so in them, and further libraries `after` it (":PATH")."""

    def start(name: str, *arguments: object, after: str = "", interval_bytes: int | None = None) -> Workload:
        environment = [f"LD_PRELOAD={library()}{after}"]
        if interval_bytes is not None:
            environment.append(f"BPFLEAK_SAMPLE_INTERVAL={interval_bytes}")
        return started("/usr/bin/env", *environment, build(name), *arguments)

    return start
