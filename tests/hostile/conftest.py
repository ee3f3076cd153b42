"""Fixtures: a daemon, and a bystander that no attack may touch."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..kernel.conftest import _machine, daemon, workload
from ..kernel.machine import need_tool
from .bystander import Bystander

__all__ = ["_machine", "daemon", "workload"]


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
def bystander(daemon: Callable, workload: Callable) -> Iterator[Bystander]:
    """A traced program of root; at the end it must have been left alone."""
    watched = Bystander(daemon(), workload("many_sites", 1, 23, 101))
    yield watched
    watched.check()


@pytest.fixture
def flood(public_directory: Path) -> Path:
    """The program, where the user nobody may execute it."""
    need_tool("gcc")
    program = public_directory / "flood"
    source = Path(__file__).with_name("flood.c")
    subprocess.run(["gcc", "-O1", "-pthread", "-o", program, source], check=True, timeout=60)
    program.chmod(0o755)
    return program
