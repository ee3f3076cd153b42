"""Compares the memory of a process with the instructions of its file: do breakpoints exist, and may they?

The kernel places a breakpoint whatever is in the process' memory, and executes the instruction of the file in
its place. Where a process has changed its code (hooks, live patches), that would end it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.probe import ProbedFunction
from bpfleakd.process.files.mapped_files import OpenedFile, open_mapped
from bpfleakd.process.remote_memory import RemoteMemory

PROC = Path("/proc")
_INT3 = 0xCC
# A static probe (5 bytes), which the kernel replaces with a call since Linux 6.18.
_NOP = bytes.fromhex("0f1f440000")
_CALL = 0xE8
_LONGEST_INSTRUCTION_BYTES = 15


OpenFile: TypeAlias = Callable[[int, Mapping, str], OpenedFile]
"""Opens the file of a mapping of a process, for its owner."""


def missing_breakpoints(
    pid: int,
    probes: Iterable[ProbedFunction],
    mappings: Iterable[Mapping],
    proc: Path = PROC,
    open_file: OpenFile = open_mapped,
) -> list[ProbedFunction]:
    """The probes at whose addresses the process executes the instructions of the file.

    Unmapped or unreadable addresses do not count as missing: the process may be ending.
    """
    mappings = list(mappings)
    with suppress(OSError), RemoteMemory(pid, proc) as memory:
        return [
            probe
            for probe in probes
            if any(_is_missing(memory, pid, probe, each, open_file) for each in _places(probe, mappings))
        ]
    return []


def _places(probe: ProbedFunction, mappings: Iterable[Mapping]) -> Iterator[Mapping]:
    for mapping in mappings:
        inside = mapping.offset <= probe.offset < mapping.offset + mapping.end - mapping.start
        if inside and mapping.executable and mapping.path == probe.module:
            yield mapping


def _is_missing(
    memory: RemoteMemory, pid: int, probe: ProbedFunction, mapping: Mapping, open_file: OpenFile
) -> bool:
    try:
        file = open_file(pid, mapping, str(pid))
        instruction = os.pread(file.descriptor, 1, probe.offset)
        return instruction != bytes([_INT3]) and instruction == memory.read(
            mapping.start + probe.offset - mapping.offset, 1
        )
    except OSError:
        return False


def changed_code(
    pid: int,
    file: int,
    points: Iterable[tuple[int, int]],
    mappings: Iterable[Mapping],
    proc: Path = PROC,
) -> list[int]:
    """The probe points at which the process executes other instructions than its file has.

    `file` is the descriptor, `points` are file offsets of a function and of the instruction to probe in it,
    `mappings` those of the file. Breakpoints of others are no change, and neither is unreadable memory.
    """
    mappings = [mapping for mapping in mappings if mapping.executable]
    changed = []
    with suppress(OSError), RemoteMemory(pid, proc) as memory:
        for start, point in points:
            size_bytes = point + _LONGEST_INSTRUCTION_BYTES - start
            for mapping in mappings:
                if mapping.offset <= start < mapping.offset + mapping.end - mapping.start:
                    with suppress(OSError):
                        read = memory.read(mapping.start + start - mapping.offset, size_bytes)
                        if _differs(os.pread(file, size_bytes, start), read):
                            changed.append(point)
                            break
    return changed


def _differs(code: bytes, read: bytes) -> bool:
    at = 0
    while at < len(code):
        if code[at : at + 5] == _NOP and read[at] == _CALL:
            at += 5
        elif read[at] in (code[at], _INT3):
            at += 1
        else:
            return True
    return False
