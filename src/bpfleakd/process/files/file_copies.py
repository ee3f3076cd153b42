"""Copies of files in memory that nobody can change any more (memfd_create(2), sealed).

Copies of files of slow file systems have limits: of a file, of a process, of all together. What is in use is
counted by looking at our open descriptors, so that no copy is forgotten, whoever keeps it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time

from bpfleakd.process.files.local_devices import is_kernels_own
from bpfleakd.process.reading.server import file_system

__all__ = ["copy_of_slow_file", "is_slow", "sealed_copy"]

OWN_BYTES_MAX = 256 << 20
ALL_BYTES_MAX = 512 << 20
# A server that is as slow as that keeps a thread busy.
COPY_S = 30.0
_PART_BYTES = 1 << 20
_DESCRIPTORS = "/proc/self/fd"
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

_counting = threading.Lock()


def is_slow(descriptor: int) -> bool:
    """Whether reading a file may wait for a server; asking may, too. Raises OSError."""
    return not is_kernels_own(file_system(descriptor)[0])


def copy_of_slow_file(descriptor: int, size_bytes: int, owner: str) -> int:
    """Copy a file for the process `owner`, and return the copy. Waits as long as the server of the file does.

    Raises OSError: EFBIG if it is larger than any copy may be, ENOSPC if there are too many copies.
    """
    if size_bytes > OWN_BYTES_MAX:
        raise OSError(errno.EFBIG, "it is too large to be copied, and its file system may not answer")
    name = f"slow-file:{owner}"
    with _counting:
        _refuse_too_many(name, size_bytes)
        copy = _new_copy(name)
        # It counts from now on.
        os.ftruncate(copy, size_bytes)
    try:
        return _filled(copy, descriptor, size_bytes, time.monotonic() + COPY_S)
    except EOFError:
        raise OSError(errno.EIO, "the file is being written") from None


def sealed_copy(name: str, descriptor: int, size_bytes: int) -> int:
    """Copy so many bytes of a file, and return the copy. Raises OSError, and EOFError if it is shorter."""
    return _filled(_new_copy(name), descriptor, size_bytes)


def _new_copy(name: str) -> int:
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _filled(copy: int, descriptor: int, size_bytes: int, deadline_s: float = float("inf")) -> int:
    """The copy with all bytes, sealed; it is closed if that fails."""
    try:
        done = 0
        while done < size_bytes:
            if time.monotonic() > deadline_s:
                raise TimeoutError(errno.ETIMEDOUT, "its file system takes too long to answer")
            part = os.sendfile(copy, descriptor, done, min(_PART_BYTES, size_bytes - done))
            if part == 0:
                raise EOFError
            done += part
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(copy)
        raise
    return copy


def _refuse_too_many(name: str, wanted_bytes: int) -> None:
    """Raises OSError if a copy of this name would be too much for its process, or for all."""
    sizes: dict[int, int] = {}
    own: set[int] = set()
    for number in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):
            link = os.readlink(f"{_DESCRIPTORS}/{number}")
            if link.startswith("/memfd:slow-file:"):
                status = os.fstat(int(number))
                sizes[status.st_ino] = status.st_size
                if link == f"/memfd:{name} (deleted)":
                    own.add(status.st_ino)
    own_bytes = sum(sizes[inode] for inode in own)
    if own_bytes + wanted_bytes > OWN_BYTES_MAX or sum(sizes.values()) + wanted_bytes > ALL_BYTES_MAX:
        raise OSError(errno.ENOSPC, "too much of slow file systems is copied already")
