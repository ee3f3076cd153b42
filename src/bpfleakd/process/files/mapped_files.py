"""Opens the files that processes map, with keys for storing results about them.

Rules:
- Data that one process controls never affects another. Results for a file are stored by its `FileKey`, which
  all processes share only for files that only root could have written; for any other file the key includes
  the process.
- Results shared beyond that are stored by content: `FileContent.digest` identifies bytes that can no longer
  change. A file of another user is copied into sealed memory first, since it could change between the digest
  and the next reading.
- A thread opens and copies files of non-local file systems (slow_files.py, file_copies.py), since their
  server may never answer. Readers get the copy; only probes need the file itself.
- Attributes may come from a file server, so only the thread calls fstat(2), and nothing else here requests
  them.
- A file is checked and used through the same descriptor: through `descriptor_path`, never by its name again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bpfleakd.errors import BadElf
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.files.file_copies import copy_of_slow_file, is_slow, sealed_copy
from bpfleakd.process.files.local_devices import LocalDevices, device_number
from bpfleakd.process.files.rooted_open import open_below, reopen_regular, root_of, seen_path
from bpfleakd.process.files.slow_files import SlowFiles
from bpfleakd.process.mappings import mapped_by_address
from bpfleakd.process.reading.reads import reads

# Larger files of other users are not copied: each process reads them for itself.
COPIED_BYTES_MAX = 64 << 20
# Digesting more takes longer than a second.
DIGESTED_BYTES_MAX = 1 << 30
_DIGEST_BYTES = 32

_devices = LocalDevices()


class FileKey(NamedTuple):
    """A file in its current state: writing it changes the times.

    `owner` is "" for files that only root can write, else the only process for which the key is valid.
    """

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int
    owner: str

    @property
    def is_shared(self) -> bool:
        """Whether results about the file are valid for every process."""
        return not self.owner

    @property
    def inode_key(self) -> tuple[int, int]:
        """Device and inode: the file, whatever its state. The kernel keeps probes by it."""
        return self.device, self.inode

    def of_process(self, owner: str) -> FileKey:
        """The same file, for that process alone."""
        return self._replace(owner=owner)


class FileContent:
    """Bytes that do not change: `descriptor` reads them, and belongs to this object.

    `digest` is None if the bytes could change, or are too many: results are then not shared. `is_stable`:
    only root can change them.
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

    `descriptor` reads the bytes of the file, or of a copy of it.
    """

    def __init__(self, descriptor: int, owner: str) -> None:
        """Take ownership of a descriptor; `owner` is the process that it serves."""
        self.descriptor = self._file = descriptor
        status = os.fstat(descriptor)
        self.key = FileKey(*_identity(status), "" if _is_roots(status) else owner)

    @property
    def descriptor_path(self) -> str:
        """A path that opens this very file, in this process and as long as this object exists."""
        return f"/proc/self/fd/{self._file}"

    @property
    def is_copied(self) -> bool:
        """Whether `descriptor` reads a copy."""
        return self.descriptor != self._file

    def copy(self) -> None:
        """Copy the file and read from the copy from now on; waits for the file's server. Raises OSError.

        Closing a FUSE file waits for the server too, so this closes it here. What remains open is only a
        handle (O_PATH), which no server notices when it is closed.
        """
        self.descriptor = copy_of_slow_file(self._file, self.key.size_bytes, self.key.owner)
        opened, self._file = self._file, os.open(self.descriptor_path, os.O_PATH | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            os.close(opened)

    def content(self, *, with_digest: bool = True) -> FileContent:
        """The bytes. Raises OSError, or BadElf if the file is written meanwhile."""
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
            # The descriptor is closed in any case. ENOTCONN: the file's server has ended.
            with contextlib.suppress(OSError):
                os.close(descriptor)


def open_mapped(pid: int, mapping: Mapping, owner: str) -> OpenedFile:
    """Open the very file that is mapped, on behalf of the process `owner`.

    Raises OSError: TimeoutError if its file system does not answer soon; a later call may succeed.
    """
    if device_number(mapping.device) in _devices:
        root = root_of(pid)
        return _opened(pid, mapping, owner, lambda: root.open_regular(seen_path(mapping.path, root.path)))
    return _slow_files.open(pid, mapping, owner)


def _opened(pid: int, mapping: Mapping, owner: str, by_name: Callable[[], int]) -> OpenedFile:
    """Open by address, or else by name. Raises OSError.

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
    """The same in a thread, without a limit on the wait for the file's server. Raises OSError."""
    root = root_of(pid)
    return _opened(
        pid, mapping, owner, lambda: open_below(root.directory, seen_path(mapping.path, root.path))
    )


def _copied(pid: int, mapping: Mapping, owner: str) -> OpenedFile:
    """Runs in a thread, because every call here may wait for the server."""
    opened = open_mapped_waiting(pid, mapping, owner)
    if is_slow(opened.descriptor):
        opened.copy()
    return opened


_slow_files = SlowFiles(_copied)


def close_idle() -> None:
    """Close files of slow file systems that nobody has requested recently."""
    _slow_files.close_idle()


def open_unchanged(mapping: Mapping, owner: str) -> OpenedFile:
    """Open a file that an ended process had mapped, if its name still refers to it. Raises OSError.

    Not for file systems whose server may not answer: the look-up of the name could wait for ever.
    """
    if device_number(mapping.device) not in _devices:
        raise FileNotFoundError(2, "it is on no local file system", mapping.path)
    opened = OpenedFile(open_below("/", mapping.path), owner)
    device = f"{os.major(opened.key.device):02x}:{os.minor(opened.key.device):02x}"
    if (opened.key.inode, device) != (mapping.inode, mapping.device):
        raise FileNotFoundError(2, "another file has its name", mapping.path)
    return opened


def open_of_root(path: str | Path) -> OpenedFile | None:
    """Open a file of this machine that only root could have written; None for any other file."""
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
