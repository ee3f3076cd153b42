"""A snapshot of a process' code: its mappings, and the files it executes, opened once.

It is read at the beginning of an attach and after libraries were loaded, and shared by all its users: probe
points, unwind tables, the Go runtime, names.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Mapping

import structlog
from msgspec import Struct

from bpfleakd.model.code.mapping import Mapping as MemoryMapping
from bpfleakd.process.files.mapped_files import OpenedFile, open_mapped
from bpfleakd.process.process import instance_of

log = structlog.get_logger()

# Per process; Chromium and LibreOffice have some 300.
_FILES_MAX = 1024

_AT_FDCWD, _DONT_SYNC, _INODE = -100, 0x4000, 0x100
_STATX_BYTES = 256
_INODE_AT, _DEVICE_AT = 32, 136

_libc = ctypes.CDLL(None, use_errno=True)


class CodeFile(Struct, frozen=True):
    """A file whose code a process executes, its first `mapping`, and whether it is the executable."""

    file: OpenedFile
    mapping: MemoryMapping
    is_program: bool


class ProcessCode(Struct, frozen=True):
    """`owner` identifies the process; `files` are by device and inode, open as long as this object exists.

    `unanswered` is the path of a file whose file system has not answered yet, "" if there is none.
    `lacks_program`: the process has ended, or its executable could not be opened.
    """

    pid: int
    owner: str
    mappings: tuple[MemoryMapping, ...]
    files: Mapping[tuple[str, int], CodeFile]
    unanswered: str = ""
    lacks_program: bool = False

    @property
    def program(self) -> CodeFile | None:
        """The executable; None if the process maps no code of it, or `lacks_program`."""
        return next((file for file in self.files.values() if file.is_program), None)

    def file_of(self, mapping: MemoryMapping) -> CodeFile | None:
        """The file whose code is mapped there; None for data, for no file, or if it could not be opened."""
        return self.files.get((mapping.device, mapping.inode)) if mapping.executable else None


def open_code(pid: int, mappings: Iterable[MemoryMapping], owner: str | None = None) -> ProcessCode:
    """Open the files of these mappings of a process. Files that cannot be opened are left out.

    `owner` identifies the process, by default the one that has this pid now. Raises NoSuchProcess.
    """
    owner, mappings = owner or instance_of(pid), tuple(mappings)
    program = _program_inode(pid)
    first: dict[tuple[str, int], MemoryMapping] = {}
    for mapping in mappings:
        if mapping.executable and mapping.inode:
            first.setdefault((mapping.device, mapping.inode), mapping)
    files, unanswered, lacks_program = dict[tuple[str, int], CodeFile](), "", program is None
    # However much a process maps, its program is not left out.
    for inode, mapping in sorted(first.items(), key=lambda item: not _may_be(item[1], program)):
        if len(files) >= _FILES_MAX:
            log.warning("code.left-out", pid=pid, path=mapping.path, reason="it maps too many files")
            break
        try:
            file = open_mapped(pid, mapping, owner)
            files[inode] = CodeFile(file, mapping, file.key[:2] == program)
        except OSError as error:
            lacks_program |= _may_be(mapping, program)
            if isinstance(error, TimeoutError):
                unanswered = mapping.path
    return ProcessCode(pid, owner, mappings, files, unanswered, lacks_program)


def _may_be(mapping: MemoryMapping, program: tuple[int, int] | None) -> bool:
    """Whether this is the program, as far as the inode tells: some file systems have several devices."""
    return program is not None and mapping.inode == program[1]


def program_of(pid: int) -> tuple[int, int]:
    """Device and inode of a process' executable, as stat(2) returns them. Raises OSError.

    The server of its file system is not contacted: stat(2) of a FUSE or NFS file may wait for it for ever;
    statx(2) with AT_STATX_DONT_SYNC contacts nobody.
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    path = f"/proc/{pid}/exe"
    if _libc.statx(_AT_FDCWD, path.encode(), _DONT_SYNC, _INODE, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    (inode,) = struct.unpack_from("=Q", buffer, _INODE_AT)
    major, minor = struct.unpack_from("=II", buffer, _DEVICE_AT)
    return os.makedev(major, minor), inode


def _program_inode(pid: int) -> tuple[int, int] | None:
    try:
        return program_of(pid)
    except OSError:
        return None
