"""Byte sources: positional reads from a regular file or from memory, never past the end.

Files are read with pread and not mapped. Their owners may be hostile or merely upgrading: if a file is
truncated, touching a mapped page past the new end raises SIGBUS and ends the daemon, while a pread returns
fewer bytes. Mapped pages would also count as resident memory.
"""

from __future__ import annotations

import os
import stat
from typing import Protocol

from bpfleakd.errors import BadElf


class ByteSource(Protocol):
    """The source of an ELF image's bytes."""

    name: str
    size_bytes: int

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Exactly `size_bytes` bytes; raises `BadElf` if the source has fewer."""

    def close(self) -> None: ...


class FileBytes:
    """A regular file. Raises `BadElf` for any other, without opening a device or a pipe."""

    def __init__(self, file: str | os.PathLike[str] | int) -> None:
        """Open a path or duplicate a descriptor. Raises `OSError` on failure, or `BadElf`."""
        self._fd = -1
        self.name = f"fd {file}" if isinstance(file, int) else os.fspath(file)
        self._fd = os.dup(file) if isinstance(file, int) else _open_regular(self.name)
        status = self.status()
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise BadElf(f"{self.name}: is not a regular file")
        self.size_bytes = status.st_size

    def status(self) -> os.stat_result:
        """Return the fstat of the file."""
        return os.fstat(self._fd)

    def duplicate(self) -> int:
        """A duplicate descriptor of the file, which the caller owns."""
        return os.dup(self._fd)

    @property
    def descriptor_path(self) -> str:
        """A path that opens this very file, whatever happened to its name, while this object is open."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def read(self, offset: int, size_bytes: int) -> bytes:
        _check_bounds(self, offset, size_bytes)
        try:
            data = os.pread(self._fd, size_bytes, offset)
        except OSError as error:
            raise BadElf(f"{self.name}: cannot be read at {offset}: {error.strerror}") from error
        if len(data) != size_bytes:
            raise BadElf(f"{self.name}: ends at {offset + len(data)}, was {self.size_bytes} bytes long")
        return data

    def close(self) -> None:
        # -1 and not a stale number: the kernel gives the same descriptor to the next file.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class MemoryBytes:
    """Bytes in memory: the vdso, or a decompressed section."""

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self.size_bytes = len(data)
        self._data = data

    def read(self, offset: int, size_bytes: int) -> bytes:
        _check_bounds(self, offset, size_bytes)
        return self._data[offset : offset + size_bytes]

    def close(self) -> None:
        """Do nothing."""


def _open_regular(path: str) -> int:
    # O_PATH examines without opening: opening a pipe may block, opening a device may do anything.
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return os.dup(handle)  # refused by the caller, which checks again
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _check_bounds(source: ByteSource, offset: int, size_bytes: int) -> None:
    if offset < 0 or size_bytes < 0 or offset + size_bytes > source.size_bytes:
        raise BadElf(
            f"{source.name}: {size_bytes} bytes at {offset} are outside the file of {source.size_bytes} bytes"
        )
