"""Builds directories of test programs that have a Makefile."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .machine import need_tool
from .workloads import BUILD, SOURCES, building_alone


def build_directory(name: str, *targets: str, **variables: str | Path) -> Path:
    """Make tests/workloads/NAME, or only the `targets` of it; return where they are."""
    for tool in ("make", "gcc", "g++"):
        need_tool(tool)
    directory = BUILD / name
    assignments = [f"{key}={value}" for key, value in {"BUILD": directory, **variables}.items()]
    files = [directory / target for target in targets]
    with building_alone():
        done = subprocess.run(
            ["make", "--silent", "-C", SOURCES / name, *assignments, *files],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{name} does not compile:\n{done.stderr}"
    return directory
