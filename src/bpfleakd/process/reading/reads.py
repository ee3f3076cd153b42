"""The one way to read what a process can keep its reader waiting for: /proc/PID/mem, maps and their like.

A page of such memory may belong to a file whose server answers when it likes, or never (FUSE, NFS). Then the
reader waits in the kernel, where no signal reaches it. No flag of read(2) prevents that, and a check before
the read is out of date at once. So the daemon has another process read (apart.py). A program that reads one
process and ends, such as the one that scans, reads directly.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from typing import Protocol

from bpfleakd.process.reading.server import BUFFER_BYTES, Words, file_system, open_in_root, read_words

_PIECE_BYTES = 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t


class Reads(Protocol):
    """System calls on a process. All raise OSError, TimeoutError if the process keeps its readers waiting.

    `open_below` also returns the result of `server.file_system`. `rest`, called now and then, releases unused
    resources.
    """

    def open(self, pid: int, path: str, flags: int) -> int: ...
    def open_below(self, pid: int, root: str, path: str, flags: int) -> tuple[int, int, int]: ...
    def read_at(self, pid: int, descriptor: int, size_bytes: int, place: int) -> bytes: ...
    def read_memory(self, pid: int, descriptor: int, size_bytes: int, address: int) -> bytes: ...
    def read_words(self, pid: int, descriptor: int, kind: int, request: bytes) -> bytes: ...
    def read_on(self, pid: int, descriptor: int, size_bytes: int) -> bytes: ...
    def read_file(self, pid: int, path: str, size_bytes: int) -> bytes: ...
    def write_at(self, pid: int, descriptor: int, data: bytes, place: int) -> int: ...
    def read_pieces(self, pid: int, pieces: bytes, address: int, size_bytes: int) -> int: ...
    def close(self, descriptor: int) -> None: ...
    def is_silent(self, pid: int) -> bool: ...
    def close_idle(self) -> None: ...


class _FileWords(Words):
    """The same from a file that is open."""

    def __init__(self, buffer: mmap.mmap) -> None:
        super().__init__(buffer)
        self._target = memoryview(buffer)
        self._descriptor = -1

    def read(self, descriptor: int, kind: int, request: bytes) -> bytes:
        """The result of a request."""
        self._descriptor = descriptor
        return bytes(self._target[: read_words(self, kind, request)])

    def read_into(self, pid: int, place: int, addresses: array.array[int], size_bytes: int) -> int:
        done = 0
        for address in addresses:
            room = self._target[place + done : place + done + size_bytes]
            try:
                got = os.preadv(self._descriptor, [room], address)
            except (OSError, OverflowError):
                break
            if got < size_bytes:
                break
            done += size_bytes
        return done


class _Direct:
    """Reads in this process, and waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._words: _FileWords | None = None

    def open(self, pid: int, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC)

    def open_below(self, pid: int, root: str, path: str, flags: int) -> tuple[int, int, int]:
        descriptor = open_in_root(root, os.fsencode(path), flags)
        try:
            return descriptor, *file_system(descriptor)
        except OSError:
            os.close(descriptor)
            raise

    def read_at(self, pid: int, descriptor: int, size_bytes: int, place: int) -> bytes:
        return os.pread(descriptor, size_bytes, place)

    read_memory = read_at

    def read_words(self, pid: int, descriptor: int, kind: int, request: bytes) -> bytes:
        with self._lock:
            self._words = self._words or _FileWords(mmap.mmap(-1, BUFFER_BYTES))
            return self._words.read(descriptor, kind, request)

    def read_on(self, pid: int, descriptor: int, size_bytes: int) -> bytes:
        parts = []
        while size_bytes and (part := os.read(descriptor, size_bytes)):
            parts.append(part)
            size_bytes -= len(part)
        return b"".join(parts)

    def read_file(self, pid: int, path: str, size_bytes: int) -> bytes:
        descriptor = self.open(pid, path, os.O_RDONLY)
        try:
            return self.read_on(pid, descriptor, size_bytes)
        finally:
            self.close(descriptor)

    def write_at(self, pid: int, descriptor: int, data: bytes, place: int) -> int:
        return os.pwrite(descriptor, data, place)

    def read_pieces(self, pid: int, pieces: bytes, address: int, size_bytes: int) -> int:
        local = (ctypes.c_uint64 * 2)(address, size_bytes)
        count = ctypes.c_ulong(len(pieces) // _PIECE_BYTES)
        got: int = _libc.process_vm_readv(pid, local, ctypes.c_ulong(1), pieces, count, ctypes.c_ulong(0))
        if got < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return got

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def is_silent(self, pid: int) -> bool:
        return False

    def close_idle(self) -> None:
        pass


_current: Reads = _Direct()


def reads() -> Reads:
    """The way in which this process reads others."""
    return _current


@contextlib.contextmanager
def using(other: Reads) -> Iterator[None]:
    """Use `other` within the context."""
    global _current
    before, _current = _current, other
    try:
        yield
    finally:
        _current = before


def read_file(pid: int, path: os.PathLike[str], limit_bytes: int | None = None) -> bytes:
    """The content of a file of /proc/PID, or the beginning of it. Raises OSError."""
    wanted = BUFFER_BYTES if limit_bytes is None else min(limit_bytes, BUFFER_BYTES)
    content = _current.read_file(pid, os.fspath(path), wanted)
    if len(content) < BUFFER_BYTES or len(content) == limit_bytes:
        return content
    with TargetFile(pid, path) as file:
        return b"".join(file.read_on(limit_bytes))


def read_pieces(pid: int, pieces: bytes, address: int, size_bytes: int) -> int:
    """process_vm_readv(2) of `pieces`, an array of struct iovec, to a local address; returns the bytes."""
    return _current.read_pieces(pid, pieces, address, size_bytes)


class TargetFile:
    """An open file of /proc/PID, such as `mem`, of the address space at the time of opening."""

    def __init__(self, pid: int, path: os.PathLike[str], flags: int = os.O_RDONLY) -> None:
        """Raises OSError."""
        self._pid = pid
        self._reads = _current
        self._descriptor = self._reads.open(pid, os.fspath(path), flags)

    def read_at(self, size_bytes: int, place: int) -> bytes:
        """Read like pread(2)."""
        return self._reads.read_at(self._pid, self._descriptor, size_bytes, place)

    def read_memory(self, size_bytes: int, address: int) -> bytes:
        """Read memory; the file must be /proc/PID/mem."""
        return self._reads.read_memory(self._pid, self._descriptor, size_bytes, address)

    def read_words(self, kind: int, request: bytes) -> bytes:
        """The result of a request of this kind to `server.Words`; the file must be /proc/PID/mem."""
        return self._reads.read_words(self._pid, self._descriptor, kind, request)

    def read_on(self, limit_bytes: int | None = None) -> Iterator[bytes]:
        """Yield the rest of the file, in parts of at most a MiB."""
        left = limit_bytes
        while left is None or left > 0:
            wanted = BUFFER_BYTES if left is None else min(left, BUFFER_BYTES)
            part = self._reads.read_on(self._pid, self._descriptor, wanted)
            if part:
                yield part
            if len(part) < wanted:
                return
            left = left if left is None else left - len(part)

    def write_at(self, data: bytes, place: int) -> int:
        """Write like pwrite(2)."""
        return self._reads.write_at(self._pid, self._descriptor, data, place)

    def close(self) -> None:
        """Close it; may be called more than once."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._reads.close(descriptor)

    def __enter__(self) -> TargetFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def silent_note(pid: int) -> str | None:
    """The note that `ps` shows for a process that keeps its readers waiting."""
    if not _current.is_silent(pid):
        return None
    return (
        "it does not answer: a page of its memory, or a file below its root directory, is of a file system "
        "whose server keeps readers waiting; figures from it are missing until the next attempt"
    )
