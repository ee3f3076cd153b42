"""Words and bytes of another process' memory, by address.

The descriptor belongs to the address space that the process had when it was opened: a later exec or another
process with the same pid is never read instead.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

__all__ = ["RemoteMemory"]

_WORD = struct.Struct("<Q")
_ADDRESSES_END = 1 << 47
# Enough for everything that is read at once; what a process claims about its sizes is not trusted.
_READ_MAX_BYTES = 64 << 20


class RemoteMemory:
    """Reads `/proc/PID/mem`. A context manager. Every read raises OSError where memory is not there."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        """Raises OSError if the process has ended or may not be read."""
        self._descriptor = os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, size_bytes: int) -> bytes:
        """Return exactly `size_bytes` bytes."""
        if not (0 < address < _ADDRESSES_END and 0 <= size_bytes <= _READ_MAX_BYTES):
            raise OSError(f"no memory of {size_bytes} bytes at {address:#x}")
        data = os.pread(self._descriptor, size_bytes, address)
        if len(data) != size_bytes:
            raise OSError(f"{size_bytes} bytes at {address:#x}: only {len(data)} can be read")
        return data

    def word(self, address: int) -> int:
        """Return the 64-bit word at an address."""
        word: int = _WORD.unpack(self.read(address, _WORD.size))[0]
        return word

    def text(self, address: int, limit_bytes: int) -> bytes:
        """Return a NUL-terminated text, cut at `limit_bytes`; it may end at the end of a page."""
        room = min(limit_bytes, 4096 - address % 4096)
        text, terminator, _ = self.read(address, room).partition(b"\0")
        if terminator or room == limit_bytes:
            return text
        return text + self.text(address + room, limit_bytes - room)

    def close(self) -> None:
        """Close the descriptor; may be called more than once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> RemoteMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
