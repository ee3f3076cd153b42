"""What is known of a process' code at one moment: its mappings, and the files it executes, opened once.

Read at the beginning of an attach, and when libraries have come, and passed to all that need it: probe
points, unwind tables, names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from bpfleakd.model.code.mapping import Mapping as MemoryMapping
from bpfleakd.process.mapped_files import OpenedFile, open_mapped
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import instance_of
from bpfleakd.tracing.attaching.file_systems import WAIT_S, FileSystems

__all__ = ["CodeFile", "CodeReader", "ProcessCode", "open_code"]

log = structlog.get_logger()

# Of one process; Chromium and LibreOffice have some 300.
_FILES_MAX = 1024


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file that a process executes code of, its first `mapping`, and whether it is the process' program."""

    file: OpenedFile
    mapping: MemoryMapping
    is_program: bool


@dataclass(frozen=True, slots=True)
class ProcessCode:
    """`owner` stands for the process; `files` are by device and inode, and open as long as this is kept."""

    pid: int
    owner: str
    mappings: tuple[MemoryMapping, ...]
    files: Mapping[tuple[str, int], CodeFile]

    @property
    def opened(self) -> list[tuple[MemoryMapping, OpenedFile]]:
        """The files, each with its first mapping."""
        return [(code.mapping, code.file) for code in self.files.values()]

    def file_of(self, mapping: MemoryMapping) -> CodeFile | None:
        """The file whose code is mapped there; None if it is data, no file, or could not be opened."""
        return self.files.get((mapping.device, mapping.inode)) if mapping.executable else None


class CodeReader:
    """Reads the code of processes; waits for no file system that does not answer."""

    def __init__(self) -> None:
        self._file_systems = FileSystems()

    def code_of(self, pid: int, wait_s: float = WAIT_S) -> ProcessCode:
        """The code of a process now.

        Raises NoSuchProcess, AccessDenied, and NotYet if a file system does not answer within `wait_s`.
        """
        owner, mappings = instance_of(pid), read_mappings(pid)
        self._file_systems.expect_answers(pid, owner, mappings, wait_s)
        return _opened(pid, owner, mappings)


def open_code(pid: int, mappings: Iterable[MemoryMapping]) -> ProcessCode:
    """Open the files of these mappings of a process, whose file systems answer. Raises NoSuchProcess."""
    return _opened(pid, instance_of(pid), tuple(mappings))


def _opened(pid: int, owner: str, mappings: tuple[MemoryMapping, ...]) -> ProcessCode:
    """What cannot be opened is left out."""
    first: dict[tuple[str, int], MemoryMapping] = {}
    for mapping in mappings:
        if mapping.executable and mapping.inode:
            first.setdefault((mapping.device, mapping.inode), mapping)
    program, files = _program_inode(pid), dict[tuple[str, int], CodeFile]()
    for inode, mapping in first.items():
        if len(files) >= _FILES_MAX:
            log.warning("code.left-out", pid=pid, path=mapping.path, reason="it maps too many files")
            break
        with contextlib.suppress(OSError):
            file = open_mapped(pid, mapping, owner)
            files[inode] = CodeFile(file, mapping, file.key[:2] == program)
    return ProcessCode(pid, owner, mappings, files)


def _program_inode(pid: int) -> tuple[int, int] | None:
    try:
        status = os.stat(f"/proc/{pid}/exe")
    except OSError:
        return None
    return status.st_dev, status.st_ino
