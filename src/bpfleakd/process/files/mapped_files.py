"""The files that processes map, opened so that what is learned of them can be kept.

Rules:
- Data that one process controls decides nothing for another. Results for a file are stored by its `FileKey`,
  which all processes share only for files that only root could have written; for any other file the key
  includes the process.
- Results shared beyond that are stored by content: `FileContent.digest` stands for bytes that cannot change
  any more. A file of another user is copied into sealed memory first, since it could change between the
  digest and the next reading.
- Files of other file systems than the local ones are opened and copied by a thread (slow_files.py,
  file_copies.py): their server may never answer. Readers get the copy; only probes need the file itself.
- Nothing here asks a file server for attributes; fstat(2) does, so it is the thread's, too.
- A file is checked and used through the same descriptor: through `descriptor_path`, never by its name again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from bpfleakd.errors import BadElf
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.files.file_copies import copy_of_slow_file, is_slow, sealed_copy
from bpfleakd.process.files.local_devices import LocalDevices, device_number
from bpfleakd.process.files.program_file import program_of
from bpfleakd.process.files.rooted_open import open_below, reopen_regular, root_of
from bpfleakd.process.files.slow_files import SlowFiles
from bpfleakd.process.mappings import mapped_by_address
from bpfleakd.process.reading.reads import reads

__all__ = [
    "FileContent",
    "FileKey",
    "OpenedFile",
    "open_mapped",
    "open_mapped_waiting",
    "open_of_root",
    "open_program",
    "open_unchanged",
    "rest",
]

# The maximum to copy: each process reads larger files of other users for itself.
COPIED_BYTES_MAX = 64 << 20
# To digest more takes longer than a second.
DIGESTED_BYTES_MAX = 1 << 30
_DIGEST_BYTES = 32

_devices = LocalDevices()


class FileKey(NamedTuple):
    """A file as it is now: writing it changes the times.

    `owner` is "" for what only root can write, else the process for which alone it holds.
    """

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int
    owner: str

    @property
    def is_shared(self) -> bool:
        """Whether what is learned of the file holds for every process."""
        return not self.owner

    def of_process(self, owner: str) -> FileKey:
        """The same file, for that process alone."""
        return self._replace(owner=owner)


class FileContent:
    """Bytes that do not change: `descriptor` reads them, and stays this object's.

    `digest` is None if the bytes could change or are too many: results are then not shared. `is_stable`: only
    root can change them.
    """

    def __init__(self, descriptor: int, digest: bytes | None, *, is_stable: bool) -> None:
        self.descriptor = descriptor
        self.digest = digest
        self.is_stable = is_stable

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> FileContent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OpenedFile:
    """A regular file, open for reading. It is closed with the last reference to it.

    `descriptor` reads its bytes: of the file, or of a copy of it.
    """

    def __init__(self, descriptor: int, owner: str) -> None:
        """Take a descriptor, which this object owns; `owner` is the process it belongs to."""
        self.descriptor = self._file = descriptor
        status = os.fstat(descriptor)
        self.key = FileKey(*_identity(status), "" if _is_roots(status) else owner)

    @property
    def descriptor_path(self) -> str:
        """A path that opens this very file, in this process and while this object is there."""
        return f"/proc/self/fd/{self._file}"

    @property
    def is_copied(self) -> bool:
        """Whether reading `descriptor` reads a copy."""
        return self.descriptor != self._file

    def copy(self) -> None:
        """Read from a copy from now on: it takes as long as the file's server likes. Raises OSError.

        Who closes a FUSE file waits for the server, too. So that is done here, and what stays open is only
        a handle (O_PATH), of whose end no server learns.
        """
        self.descriptor = copy_of_slow_file(self._file, self.key.size_bytes, self.key.owner)
        opened, self._file = self._file, os.open(self.descriptor_path, os.O_PATH | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            os.close(opened)

    def content(self, *, with_digest: bool = True) -> FileContent:
        """The bytes. Raises OSError, and BadElf if the file is written meanwhile."""
        size_bytes = self.key.size_bytes
        if self.is_copied or self.key.is_shared:
            digest = _digest(self.descriptor, size_bytes) if with_digest else None
            content = FileContent(os.dup(self.descriptor), digest, is_stable=True)
            if not self.is_copied and _identity(os.fstat(self.descriptor)) != self.key[:-1]:
                content.close()
                raise BadElf("the file is being written")
            return content
        if size_bytes > COPIED_BYTES_MAX:
            return FileContent(os.dup(self.descriptor), None, is_stable=False)
        try:
            copy = sealed_copy("mapped-file", self.descriptor, size_bytes)
        except EOFError:
            raise BadElf("the file is being written") from None
        return FileContent(copy, _digest(copy, size_bytes) if with_digest else None, is_stable=True)

    def __del__(self) -> None:
        descriptors = {getattr(self, "descriptor", -1), getattr(self, "_file", -1)} - {-1}
        self.descriptor = self._file = -1
        for descriptor in descriptors:
            # It is closed in any case. ENOTCONN: the file's server has ended.
            with contextlib.suppress(OSError):
                os.close(descriptor)


def open_mapped(pid: int, mapping: Mapping, owner: str) -> OpenedFile:
    """Open the very file that is mapped, on behalf of the process `owner`.

    Raises OSError: TimeoutError if its file system has not answered soon; then it may have when asked again.
    """
    if device_number(mapping.device) in _devices:
        return _opened(pid, mapping, owner, lambda: root_of(pid).open_regular(mapping.path))
    return _slow_files.open(pid, mapping, owner)


def _opened(pid: int, mapping: Mapping, owner: str, by_name: Callable[[], int]) -> OpenedFile:
    """By its address, or by its name if that is not possible. Raises OSError.

    The link in map_files takes the lock of the process' memory map, which the process may hold.
    """
    with contextlib.suppress(FileNotFoundError, PermissionError):
        way = reads()
        handle = way.open(pid, mapped_by_address(pid, mapping), os.O_PATH)
        try:
            return OpenedFile(reopen_regular(handle), owner)
        finally:
            way.close(handle)
    opened = OpenedFile(by_name(), owner)
    if opened.key.inode != mapping.inode:
        raise FileNotFoundError(2, "another file has its name", mapping.path)
    return opened


def open_mapped_waiting(pid: int, mapping: Mapping, owner: str) -> OpenedFile:
    """The same in a thread, which waits as long as the server of the file does. Raises OSError."""
    return _opened(pid, mapping, owner, lambda: open_below(root_of(pid).directory, mapping.path))


def _copied(pid: int, mapping: Mapping, owner: str) -> OpenedFile:
    """In a thread: whatever is asked of the server is asked here."""
    opened = open_mapped_waiting(pid, mapping, owner)
    if is_slow(opened.descriptor):
        opened.copy()
    return opened


_slow_files = SlowFiles(_copied)


def rest() -> None:
    """Close files of slow file systems that nobody has asked for lately."""
    _slow_files.rest()


def open_program(pid: int, mappings: Iterable[Mapping], owner: str) -> OpenedFile | None:
    """Open the program that a process executes; None if it maps no code of it. Raises OSError."""
    program = program_of(pid)
    for mapping in mappings:
        if mapping.executable and mapping.inode == program[1]:
            opened = open_mapped(pid, mapping, owner)
            if opened.key[:2] == program:
                return opened
    return None


def open_unchanged(mapping: Mapping, owner: str) -> OpenedFile:
    """Open what a process that has ended had mapped, if its name is still that file's. Raises OSError.

    Not on file systems whose server may not answer: then the look-up of the name would wait for ever.
    """
    if device_number(mapping.device) not in _devices:
        raise FileNotFoundError(2, "it is on no local file system", mapping.path)
    opened = OpenedFile(open_below("/", mapping.path), owner)
    device = f"{os.major(opened.key.device):02x}:{os.minor(opened.key.device):02x}"
    if (opened.key.inode, device) != (mapping.inode, mapping.device):
        raise FileNotFoundError(2, "another file has its name", mapping.path)
    return opened


def open_of_root(path: str | Path) -> OpenedFile | None:
    """Open a file of this machine that only root could have written; None if it is another."""
    with contextlib.suppress(OSError):
        opened = OpenedFile(open_below("/", str(path)), "nobody")
        return opened if opened.key.is_shared else None
    return None


def _identity(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_roots(status: os.stat_result) -> bool:
    return (
        status.st_uid in (0, os.geteuid())
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and status.st_dev in _devices
    )


def _digest(descriptor: int, size_bytes: int) -> bytes | None:
    if size_bytes > DIGESTED_BYTES_MAX:
        return None
    with open(f"/proc/self/fd/{descriptor}", "rb", buffering=0) as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).digest()
