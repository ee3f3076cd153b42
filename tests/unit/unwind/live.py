"""Stopped programs: gdb's stacks of them, and the reference walker's input for the same stacks."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.unwind.build import table_of
from bpfleakd.unwind.table import UnwindTable

from .readelf import need_tool
from .reference_walk import FindTable, FrameRegisters, ReadU64

_ATTACH = Path(__file__).with_name("gdb_attach.py")
_STEP = Path(__file__).with_name("gdb_step.py")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ([0-9a-f]+) \S+ \d+\s*(.*)")
GDB_TIMEOUT_S = 120


@dataclass(frozen=True)
class Snapshot:
    """A thread as gdb saw it, innermost frame first. `memory` is start address → bytes; may be empty."""

    registers: FrameRegisters
    program_counters: tuple[int, ...]
    memory: dict[int, bytes]

    def read_u64(self, address: int) -> int | None:
        for start, data in self.memory.items():
            if 0 <= address - start <= len(data) - 8:
                return struct.unpack_from("<Q", data, address - start)[0]
        return None


@contextmanager
def sleeping(*command: str | Path) -> Iterator[int]:
    """Start a program, wait until it says "ready", yield its pid, and end it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def gdb_stacks(pid: int) -> list[Snapshot]:
    """Attach gdb to a process, and return the stack of each of its threads."""
    return [_snapshot(line) for line in _gdb(_ATTACH, "-p", str(pid))]


def gdb_steps(program: Path, count: int, skip_functions: str) -> tuple[list[Snapshot], str]:
    """Step a program from main by `count` instructions; a snapshot after each, and its mappings.

    Functions whose name contains `skip_functions` are stepped over.
    """
    environment = os.environ | {"STEP_COUNT": str(count), "SKIP_FUNCTIONS": skip_functions}
    *steps, maps = _gdb(_STEP, "--args", str(program), "return", env=environment)
    return [_snapshot(line) for line in steps], maps["maps"]


def _gdb(script: Path, *arguments: str, env: dict[str, str] | None = None) -> list[dict]:
    command = [need_tool("gdb"), "-nx", "-batch", "-x", str(script), *arguments]
    # With -p the script must come after the process is there, and gdb keeps the order of its options.
    if arguments[0] == "-p":
        command = [command[0], "-nx", "-batch", *arguments, "-x", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=GDB_TIMEOUT_S, env=env
    )
    if "ptrace: Operation not permitted" in done.stderr:
        pytest.skip("gdb may not trace here: needs CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0")
    assert done.returncode == 0, done.stderr
    return [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("JSON ")]


def _snapshot(line: dict) -> Snapshot:
    registers = FrameRegisters(line["rip"], line["rsp"], line["rbp"])
    memory = {int(start): bytes.fromhex(data) for start, data in line.get("memory", {}).items()}
    return Snapshot(registers, tuple(line["pcs"]), memory)


@contextmanager
def memory_of(pid: int) -> Iterator[ReadU64]:
    """A reader of a process's memory."""

    def read_u64(address: int) -> int | None:
        try:
            data = os.pread(memory.fileno(), 8, address)
        except (OSError, OverflowError):
            return None
        return struct.unpack("<Q", data)[0] if len(data) == 8 else None

    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        yield read_u64


def finder(maps: str) -> FindTable:
    """Return what finds the table for an address, by the text of /proc/PID/maps."""
    mappings = []
    for line in maps.splitlines():
        start, end, permissions, offset, path = _MAPPING.match(line).groups()
        if "x" in permissions and path.startswith("/"):
            found = _table(path)
            bias = _bias(path, int(start, 16), int(offset, 16))
            if found is not None:
                mappings.append((int(start, 16), int(end, 16), found, bias))

    def find(address: int) -> tuple[UnwindTable, int] | None:
        for start, end, table, bias in mappings:
            if start <= address < end:
                return table, bias
        return None

    return find


@cache
def _table(path: str) -> UnwindTable | None:
    try:
        with ElfImage.open(path) as image:
            return table_of(image)
    except BadElf:
        return None


def _bias(path: str, start: int, offset: int) -> int:
    with ElfImage.open(path) as image:
        return start - image.vaddr_of(offset)
