"""Daemons and programs as the kernel tests have them."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from ..kernel.conftest import _machine, daemon, started, workload
from ..kernel.machine import need_tool

__all__ = ["_machine", "daemon", "started", "workload"]


@pytest.fixture(scope="session")
def restless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that ends, execs and forks when it likes."""
    need_tool("gcc")
    program = tmp_path_factory.mktemp("stress") / "restless"
    source = Path(__file__).with_name("restless.c")
    subprocess.run(["gcc", "-O1", "-g", "-pthread", "-o", program, source], check=True, timeout=60)
    return program


@pytest.fixture
def dice() -> random.Random:
    """Random numbers, other ones each time; a failure shows the seed that they came from."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed: {seed}")
    return random.Random(seed)
