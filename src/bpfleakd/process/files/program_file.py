"""The executable of a process, without contacting the server of its file system.

stat(2) of a FUSE or NFS file may wait for the server for ever; statx(2) with AT_STATX_DONT_SYNC contacts
nobody.
"""

from __future__ import annotations

import ctypes
import os
import struct

__all__ = ["program_of"]

_AT_FDCWD, _DONT_SYNC, _INODE = -100, 0x4000, 0x100
_STATX_BYTES = 256
_INODE_AT, _DEVICE_AT = 32, 136

_libc = ctypes.CDLL(None, use_errno=True)


def program_of(pid: int) -> tuple[int, int]:
    """Device and inode of a process' executable, as stat(2) returns them. Raises OSError."""
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    path = f"/proc/{pid}/exe"
    if _libc.statx(_AT_FDCWD, path.encode(), _DONT_SYNC, _INODE, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    (inode,) = struct.unpack_from("=Q", buffer, _INODE_AT)
    major, minor = struct.unpack_from("=II", buffer, _DEVICE_AT)
    return os.makedev(major, minor), inode
