"""A snapshot of a process' code: its mappings, and the files it executes, opened once.

It is read at the beginning of an attach and after libraries were loaded, and shared by all its users: probe
points, unwind tables, names.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import structlog
from msgspec import Struct

from bpfleakd import errors
from bpfleakd.model.code.mapping import Mapping as MemoryMapping
from bpfleakd.process.files.mapped_files import OpenedFile, open_mapped
from bpfleakd.process.files.program_file import program_of
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import instance_of
from bpfleakd.tracing.attaching.file_systems import WAIT_S, FileSystems

__all__ = ["CodeFile", "ProcessCode", "ProcessCodeReader", "not_yet", "open_code"]

log = structlog.get_logger()

# Per process; Chromium and LibreOffice have some 300.
_FILES_MAX = 1024
_PAUSE_S = 0.005


class CodeFile(Struct, frozen=True):
    """A file whose code a process executes, its first `mapping`, and whether it is the executable."""

    file: OpenedFile
    mapping: MemoryMapping
    is_program: bool


class ProcessCode(Struct, frozen=True):
    """`owner` identifies the process; `files` are by device and inode, open as long as this object exists.

    `unanswered` is the path of a file whose file system has not answered yet, "" if there is none.
    """

    pid: int
    owner: str
    mappings: tuple[MemoryMapping, ...]
    files: Mapping[tuple[str, int], CodeFile]
    unanswered: str = ""

    @property
    def opened(self) -> list[tuple[MemoryMapping, OpenedFile]]:
        """The files, each with its first mapping."""
        return [(code.mapping, code.file) for code in self.files.values()]

    def file_of(self, mapping: MemoryMapping) -> CodeFile | None:
        """The file whose code is mapped there; None for data, for no file, or if it could not be opened."""
        return self.files.get((mapping.device, mapping.inode)) if mapping.executable else None


class ProcessCodeReader:
    """Reads the code of processes; does not wait for file systems that do not answer."""

    def __init__(self) -> None:
        self._file_systems = FileSystems()

    def code_of(self, pid: int, wait_s: float = WAIT_S) -> ProcessCode:
        """The current code of a process.

        Raises NoSuchProcess, AccessDenied, or NotYet if a file system does not answer within `wait_s`.
        """
        due_s = time.monotonic() + wait_s
        while (code := self.code_so_far(pid, wait_s)).unanswered:
            if time.monotonic() >= due_s:
                raise not_yet(code)
            time.sleep(_PAUSE_S)
        return code

    def code_so_far(self, pid: int, wait_s: float = WAIT_S) -> ProcessCode:
        """The same without the files that are still being read: see `unanswered`."""
        owner, mappings = instance_of(pid), read_mappings(pid)
        self._file_systems.expect_answers(pid, owner, mappings, wait_s)
        return _opened(pid, owner, mappings)


def not_yet(code: ProcessCode) -> errors.NotYet:
    """The error to raise if an answer is needed."""
    return errors.NotYet(f"{code.unanswered} is still being read, or its file system does not answer")


def open_code(pid: int, mappings: Iterable[MemoryMapping]) -> ProcessCode:
    """Open the files of these mappings of a process, whose file systems answer. Raises NoSuchProcess."""
    return _opened(pid, instance_of(pid), tuple(mappings))


def _opened(pid: int, owner: str, mappings: tuple[MemoryMapping, ...]) -> ProcessCode:
    """Files that cannot be opened are left out."""
    first: dict[tuple[str, int], MemoryMapping] = {}
    for mapping in mappings:
        if mapping.executable and mapping.inode:
            first.setdefault((mapping.device, mapping.inode), mapping)
    program, files, unanswered = _program_inode(pid), dict[tuple[str, int], CodeFile](), ""
    for inode, mapping in first.items():
        if len(files) >= _FILES_MAX:
            log.warning("code.left-out", pid=pid, path=mapping.path, reason="it maps too many files")
            break
        try:
            file = open_mapped(pid, mapping, owner)
            files[inode] = CodeFile(file, mapping, file.key[:2] == program)
        except TimeoutError:
            unanswered = mapping.path
        except OSError:
            continue
    return ProcessCode(pid, owner, mappings, files, unanswered)


def _program_inode(pid: int) -> tuple[int, int] | None:
    try:
        return program_of(pid)
    except OSError:
        return None
