"""Fixtures: a daemon, and a bystander that no attack may touch."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..kernel.conftest import _machine, daemon, place_of_daemon, running_daemon, started, workload
from ..kernel.daemons import Daemon
from ..kernel.machine import need_tool
from ..kernel.ports import free_port
from .bystander import Bystander

__all__ = ["_machine", "daemon", "started", "workload"]

# Programs at these places are traced as soon as they run.
ATTACKERS = "/var/tmp/bpfleakd-hostile-*/flood*"


@pytest.fixture(scope="session")
def besieged_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all attacks, as a machine has one: what an earlier one left behind shows in the next."""
    directory, bpffs_dir, configuration = place_of_daemon(tmp_path_factory)
    rules = [{"match": {"exe": ATTACKERS}, "mode": "exact", "follow_children": True}]
    configuration["policy"] = {"default": "off", "rules": rules}
    configuration["metrics"] = {"enabled": True, "port": free_port()}
    with running_daemon(directory, bpffs_dir, configuration) as running:
        yield running


@pytest.fixture
def tracer(besieged_daemon: Daemon) -> Iterator[Daemon]:
    """The daemon; at the end its log must have no failure since the beginning of the test."""
    before = len(besieged_daemon.log)
    yield besieged_daemon
    logged = besieged_daemon.log[before:]
    for event in ("tick.failed", "api.failed", "Traceback", "library"):
        assert event not in logged, logged
    # The log has one line for refused connections, not one each.
    assert logged.count("api.refused") <= 2


@pytest.fixture(params=range(int(os.environ.get("ROUNDS", "1"))), autouse=True)
def _round(request: pytest.FixtureRequest) -> int:
    """How often each attack is tried: what depends on the moment shows then."""
    return request.param


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that every user can read, and root alone can write."""
    directory = Path(tempfile.mkdtemp(prefix="bpfleakd-hostile-", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def bystander(tracer: Daemon, workload: Callable) -> Iterator[Bystander]:
    """A traced program of root; at the end it must have been left alone."""
    watched = Bystander(tracer, workload("many_sites", 1, 23, 101))
    yield watched
    watched.check()


@pytest.fixture
def flood(public_directory: Path) -> Path:
    """The program, at a path where the user nobody may execute it."""
    need_tool("gcc")
    program = public_directory / "flood"
    source = Path(__file__).with_name("flood.c")
    subprocess.run(["gcc", "-O1", "-pthread", "-o", program, source], check=True, timeout=60)
    program.chmod(0o755)
    return program
