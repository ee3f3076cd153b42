"""Runs paths.py, which allocates on random call paths, and compares its stacks with its own records."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .daemons import Daemon
from .workloads import SOURCES

PROGRAMS = SOURCES / "runtimes" / "python"
SYSTEM = "/usr/bin/python3"
# Where pyenv and python.org's images install Python.
_OTHERS = sorted(Path("/root/.pyenv/versions").glob("3.*/bin/python3"), key=str)
_SUPPORTED = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
INTERPRETERS = [SYSTEM, *(str(path) for path in _OTHERS if path.parts[-3].startswith(_SUPPORTED))]


@dataclass
class Paths:
    """A running paths.py: allocates on request, and then reports what it did."""

    process: subprocess.Popen[str]
    ledger: dict[int, list[list[Any]]] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self._pid

    def ready(self) -> Paths:
        self._pid = int(self._line())
        return self

    def allocate(self) -> None:
        self._go_on()
        while (line := self._line()) != "end":
            size_bytes, frames = json.loads(line)
            # A bytearray ends with a NUL.
            self.ledger[size_bytes + 1] = frames

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the program has ended"
        return line.strip()

    def _go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def running(*command: str | Path) -> Iterator[Paths]:
    """The program, started by a command, until the end of the block."""
    process = subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Paths(process).ready()
    finally:
        process.kill()
        # Closes the pipes, and waits.
        process.communicate()


@dataclass
class Compared:
    """How the stacks of blocks compare with the program's own records."""

    equal: int = 0
    incomplete: int = 0
    wrong: list[tuple[list[Any], list[Any]]] = field(default_factory=list)
    missing: int = 0


def compared(tracer: Daemon, program: Paths) -> Compared:
    """Compare the Python frames of the stack of every block in the ledger."""
    stacks = {}
    for site in tracer.blocks(program.pid, "--limit", 100_000)["sites"]:
        for block in site["blocks"]:
            stacks[block["size_bytes"]] = site["stack"]
    result = Compared()
    for size_bytes, expected in program.ledger.items():
        if size_bytes not in stacks:
            result.missing += 1
            continue
        frames = [frame for frame in stacks[size_bytes] if frame["kind"] == "interpreted"]
        found = [[frame["function"], _line_of(frame)] for frame in frames]
        if found == expected:
            result.equal += 1
        elif _is_part_of(found, expected):
            result.incomplete += 1
        else:
            result.wrong.append((expected, found))
    return result


def _line_of(frame: dict[str, Any]) -> int | None:
    return int(frame["location"].rpartition(":")[2]) if frame["location"] else None


def _is_part_of(found: list[Any], expected: list[Any]) -> bool:
    """Whether every frame that has a name is one that is expected, in this order."""
    rest = iter(expected)
    return all(frame in rest for frame in found if frame[0] is not None)
