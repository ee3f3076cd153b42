"""Whether breakpoints exist: compares the memory of a process with the instructions of its file."""

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

__all__ = ["OpenFile", "missing_breakpoints"]

PROC = Path("/proc")
_INT3 = 0xCC


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
