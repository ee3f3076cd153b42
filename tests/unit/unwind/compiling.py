"""Programs to unwind, compiled for a test."""

from __future__ import annotations

import subprocess
from enum import Enum
from pathlib import Path

import pytest

from .readelf import need_tool

_SOURCES = Path(__file__).with_name("programs")


class Program(Enum):
    """The sources in `programs/`."""

    FRAMES = "frames.c"
    EXCEPTIONS = "exceptions.cpp"
    DIRECTIVES = "directives.S"


def compiled(program: Program, directory: Path, *options: str) -> Path:
    """Compile and link a program into `directory`; skips where this compiler cannot."""
    source = _SOURCES / program.value
    compiler = need_tool("g++" if source.suffix == ".cpp" else "gcc")
    directory.mkdir(exist_ok=True)
    path = directory / source.stem
    command = [compiler, *options, "-pthread", "-o", str(path), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"{' '.join(command)}: {result.stderr.strip()[-500:]}")
    return path
