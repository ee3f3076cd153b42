"""libbpfleak.so and the programs that try it, built when their source changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .machine import need_tool
from .workloads import building_alone

SOURCES = Path(__file__).parents[2] / "inside"
BUILD = SOURCES.parent / "build" / "inside"


def inside_program(name: str) -> Path:
    """One of inside/tests/, or the library."""
    need_tool("make")
    need_tool("gcc")
    with building_alone():
        done = subprocess.run(
            ["make", "--silent", "-C", SOURCES, f"BUILD={BUILD}", str(BUILD / name)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{name} does not compile:\n{done.stderr}"
    return BUILD / name


def library() -> Path:
    """libbpfleak.so."""
    return inside_program("libbpfleak.so")
