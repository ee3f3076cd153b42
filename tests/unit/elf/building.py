"""Files to look into, compiled and taken apart for a test, and what binutils say of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest


def output_of(*command: str | Path) -> str:
    """Run a tool and return its output; skips if it is not installed."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"needs {command[0]}: apt install gcc g++ binutils")
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def compiled(directory: Path, source: str, *options: str, name: str = "program", suffix: str = ".c") -> Path:
    """Compile and link a source text; returns the program (or library)."""
    file, path = directory / f"{name}{suffix}", directory / name
    file.write_text(source)
    compiler = "g++" if suffix == ".cpp" else "gcc"
    output_of(compiler, "-o", path, file, *options)
    return path


def assembled(directory: Path, source: str, *options: str) -> Path:
    """Assemble and link a shared library that needs no other."""
    return compiled(directory, source, "-shared", "-nostdlib", *options, suffix=".s")


def objcopy(path: Path, *options: str | Path) -> Path:
    """Change a file in place."""
    output_of("objcopy", *options, path)
    return path


def nm(path: Path, *options: str) -> dict[str, int]:
    """Return name -> address of the functions that nm finds, versions cut off."""
    rows = re.findall(r"^([0-9a-f]+) [tTwWiu] (\S+)$", output_of("nm", *options, path), re.MULTILINE)
    return {name.partition("@")[0]: int(address, 16) for address, name in rows}
