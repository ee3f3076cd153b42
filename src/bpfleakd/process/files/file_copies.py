"""Immutable copies of files in memory (memfd_create(2), sealed).

Copies of files of slow file systems are limited per file, per process and in total. Usage is counted from the
daemon's open descriptors, so every copy counts, whatever keeps it.
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

OWN_BYTES_MAX = 256 << 20
ALL_BYTES_MAX = 512 << 20
# A slower server would occupy a thread for too long.
COPY_S = 30.0
_PART_BYTES = 1 << 20
_DESCRIPTORS = "/proc/self/fd"
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

_counting = threading.Lock()


def is_slow(descriptor: int) -> bool:
    """Whether reading a file may wait for a server, as may this call. Raises OSError."""
    return not is_kernels_own(file_system(descriptor)[0])


def copy_of_slow_file(descriptor: int, size_bytes: int, owner: str) -> int:
    """Copy a file for the process `owner`, and return the copy. Waits for the file's server without a limit.

    Raises OSError: EFBIG if it is larger than any copy may be, ENOSPC if there are too many copies.
    """
    if size_bytes > OWN_BYTES_MAX:
        raise OSError(errno.EFBIG, "it is too large to be copied, and its file system may not answer")
    name = f"slow-file:{owner}"
    with _counting:
        _refuse_too_many(name, size_bytes)
        copy = _new_copy(name)
        # The copy counts in the limits from now on.
        os.ftruncate(copy, size_bytes)
    try:
        return _filled(copy, descriptor, size_bytes, time.monotonic() + COPY_S)
    except EOFError:
        raise OSError(errno.EIO, "the file is being written") from None


def sealed_copy(name: str, descriptor: int, size_bytes: int) -> int:
    """Copy the first `size_bytes` of a file. Raises OSError, or EOFError if the file is shorter."""
    return _filled(_new_copy(name), descriptor, size_bytes)


def _new_copy(name: str) -> int:
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _filled(copy: int, descriptor: int, size_bytes: int, deadline_s: float = float("inf")) -> int:
    """Fill the copy and seal it; close it on failure."""
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
    """Raise OSError if this copy would exceed the limit of its process, or of all."""
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
