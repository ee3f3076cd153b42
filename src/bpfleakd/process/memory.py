"""The memory of another process: which parts can hold pointers, and its contents.

Private memory that was written has separate pages, in memory or swapped out; all else is as in its file, or
zero, and has no pointers. Shared memory is read if it is writable. So a reservation costs nothing, whatever
its size, nor does code.

Reading goes through process_vm_readv(2), which fails where a page is gone and reads no device.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.process.pages import FILE_OR_SHARED, PRESENT, SWAPPED, read_entries
from bpfleakd.process.reading.reads import TargetFile, read_pieces
from bpfleakd.process.reading.refusals import reading

PROC = Path("/proc")

_PAGE_BYTES = 4096
_WORD_BYTES = 8

# Fits into a processor's cache.
_BUFFER_BYTES = 1 << 20
_PIECES_MAX = 1024  # UIO_MAXIOV
_PIECE = np.dtype([("base", "u8"), ("length", "u8")])

# Addresses, lengths in words, and the words of all, one after the other.
Pieces = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64]]


class MemoryPart(Struct, frozen=True):
    """Addresses to read together: whole pages or, at the end of a stack, whole words."""

    start: int
    end: int


def written_parts(pid: int, part: MemoryPart, *, shared: bool, proc: Path = PROC) -> list[MemoryPart]:
    """The parts in the process' own pages, or in memory at all if `shared`.

    Raises NoSuchProcess, AccessDenied or NotYet.
    """
    first, last = part.start // _PAGE_BYTES, -(-part.end // _PAGE_BYTES)
    bounds: list[NDArray[np.int64]] = []
    path = proc / str(pid) / "pagemap"
    with reading(pid, path), TargetFile(pid, path) as file:
        for entries in read_entries(file, first, last):
            there = (entries & (PRESENT | SWAPPED)) != 0
            if not shared:
                there &= (entries & FILE_OR_SHARED) == 0
            bounds.append(_bounds(there) + first)
            first += len(entries)
    if first < last:
        raise errors.NoSuchProcess(f"process {pid} no longer has any memory")
    return [
        MemoryPart(max(start * _PAGE_BYTES, part.start), min(end * _PAGE_BYTES, part.end))
        for start, end in np.concatenate([np.empty((0, 2), np.int64), *bounds]).tolist()
    ]


def _bounds(marks: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The beginning and end of each run of marks, one row each."""
    edges = np.diff(np.concatenate([[0], marks.view(np.int8), [0]]))
    return np.stack([np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)], axis=1)


class MemoryReader:
    """Reads a process' memory. `unread_bytes` could not be read: they are gone, or belong to a device."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._buffer = np.empty(_BUFFER_BYTES // _WORD_BYTES, np.uint64)
        self.read_bytes = 0
        self.unread_bytes = 0

    def read(self, parts: Sequence[MemoryPart]) -> Iterator[Pieces]:
        """Yield batches of (addresses, lengths in words, words of all pieces, one after the other).

        The words are overwritten by the next batch. Raises NoSuchProcess, AccessDenied or NotYet.
        """
        for pieces in _batches(parts):
            while len(pieces):
                got = self._read(pieces)
                wholes = np.cumsum(pieces["length"])
                count = int(np.searchsorted(wholes, got, side="right"))
                before = int(wholes[count - 1]) if count else 0
                done = pieces[: count + (got > before)].copy()
                if got > before:
                    done["length"][-1] = got - before
                if len(done):
                    lengths = (done["length"] // _WORD_BYTES).astype(np.int64)
                    yield done["base"], lengths, self._buffer[: got // _WORD_BYTES]
                self.read_bytes += got
                pieces = self._after(pieces, count, got - before)

    def words(self, addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The word at each address; 0 without memory."""
        words = np.zeros(len(addresses), np.uint64)
        pieces = np.empty(len(addresses), _PIECE)
        pieces["base"], pieces["length"] = addresses, _WORD_BYTES
        at = 0
        while at < len(pieces):
            some = pieces[at : at + _PIECES_MAX]
            count = self._read(some) // _WORD_BYTES
            words[at : at + count] = self._buffer[:count]
            # The piece after those that were read cannot be read.
            at += count + (count < len(some))
        return words

    def _after(self, pieces: NDArray[np.void], count: int, got: int) -> NDArray[np.void]:
        """The rest to read after `count` pieces and `got` bytes, without the unreadable page."""
        rest = pieces[count:].copy()
        if len(rest):
            gone = min(int(rest["length"][0]) - got, _PAGE_BYTES - (int(rest["base"][0]) + got) % _PAGE_BYTES)
            self.unread_bytes += gone
            rest["base"][0] += got + gone
            rest["length"][0] -= got + gone
            rest = rest[rest["length"] > 0]
        return rest

    def _read(self, pieces: NDArray[np.void]) -> int:
        """Read pieces of at most a buffer; returns the number of bytes, fewer if a page cannot be read."""
        buffer = self._buffer
        try:
            got = read_pieces(self._pid, pieces.tobytes(), buffer.ctypes.data, buffer.nbytes)
        except OSError as error:
            if error.errno == errno.EFAULT:
                return 0
            if error.errno == errno.ESRCH:
                raise errors.NoSuchProcess(f"process {self._pid} has ended") from error
            if isinstance(error, TimeoutError):
                raise errors.NotYet(str(error.strerror)) from error
            words = f"the memory of process {self._pid} cannot be read: {error.strerror}"
            raise errors.AccessDenied(words, "the daemon needs CAP_SYS_PTRACE") from error
        return got // _WORD_BYTES * _WORD_BYTES


def _batches(parts: Sequence[MemoryPart]) -> Iterator[NDArray[np.void]]:
    """Split parts into pieces to read at once: at most a buffer, and at most as many as a call accepts."""
    batch: list[tuple[int, int]] = []
    room = _BUFFER_BYTES
    for part in parts:
        start = part.start
        while start < part.end:
            length = min(part.end - start, room)
            batch.append((start, length))
            start += length
            room -= length
            if not room or len(batch) == _PIECES_MAX:
                yield np.array(batch, _PIECE)
                batch, room = [], _BUFFER_BYTES
    if batch:
        yield np.array(batch, _PIECE)
