"""Opening files below a root directory that another user controls.

Rules:
- Links are followed inside the root only, and those of /proc (magic links) not at all: openat2(2), Linux 5.6.
- Only regular files are opened. A pipe could block us and a device could do anything, so the type is checked
  (O_PATH) before the file is opened.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from pathlib import PurePosixPath

__all__ = ["open_below", "open_directory_below", "reopen_regular"]

_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_HOW = struct.Struct("=QQQ")

_libc = ctypes.CDLL(None, use_errno=True)


def open_below(root: str | os.PathLike[str], path: str | PurePosixPath, *, follow: bool = True) -> int:
    """Open a regular file by its path below `root` for reading; returns the descriptor.

    The file itself may be a link only if `follow`. Raises OSError.
    """
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
        handle = _openat2(root_fd, str(path).lstrip("/"), flags)
    finally:
        os.close(root_fd)
    try:
        return reopen_regular(handle)
    finally:
        os.close(handle)


def open_directory_below(root: str | os.PathLike[str], path: str | PurePosixPath, uid: int) -> int:
    """A descriptor (O_PATH) of a directory by its path below `root`, to make files there for a user.

    The user may have mounted any directory of the host at this path, in a namespace of their own. So it is
    refused unless they could make the files themselves. Raises OSError.
    """
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        directory = _openat2(root_fd, str(path).lstrip("/"), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(root_fd)
    status = os.fstat(directory)
    if uid not in (0, status.st_uid) and not status.st_mode & stat.S_IWOTH:
        os.close(directory)
        raise PermissionError(errno.EACCES, "its user may not write there", str(path))
    return directory


def reopen_regular(handle: int) -> int:
    """Open for reading what an O_PATH descriptor stands for. Raises OSError, EINVAL for no regular file."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(22, "is not a regular file")
    return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _openat2(directory_fd: int, path: str, flags: int) -> int:
    how = _HOW.pack(flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    name = os.fsencode(path)
    if b"\0" in name:
        raise OSError(22, "a path with a NUL")
    found = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(directory_fd),
        ctypes.c_char_p(name),
        ctypes.c_char_p(how),
        ctypes.c_size_t(len(how)),
    )
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return int(found)
