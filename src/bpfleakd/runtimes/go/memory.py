"""Bounded reading of another process' memory, through /proc/PID/mem.

The descriptor belongs to one address space: after exec it reads nothing, rather than another program's
memory. Unreadable memory is left out; a process that is gone has no readable memory.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.process.reading.reads import TargetFile

PROC = Path("/proc")

# Structures this close together are read together: a system call costs as much as copying some kilobytes.
_NEAR_BYTES = 4096
_PIECE_LIMIT_BYTES = 1 << 20
_WORD_BYTES = 8
# User space ends here on x86-64 with five levels of page tables.
_ADDRESS_END = 1 << 56


class ProcessMemory:
    """The memory of process `pid`, which the process controls."""

    def __init__(self, pid: int, *, writable: bool = False, proc: Path = PROC) -> None:
        """Raises NoSuchProcess, AccessDenied, or NotYet if the process keeps its readers waiting."""
        path = proc / str(pid) / "mem"
        try:
            self._file = TargetFile(pid, path, os.O_RDWR if writable else os.O_RDONLY)
        except (FileNotFoundError, ProcessLookupError) as error:
            raise errors.NoSuchProcess(f"process {pid} has ended") from error
        except TimeoutError as error:
            raise errors.NotYet(str(error.strerror)) from error
        except OSError as error:
            raise errors.AccessDenied(
                f"{path} cannot be opened: {error.strerror}", "the daemon needs CAP_SYS_PTRACE"
            ) from error

    def close(self) -> None:
        """Close the descriptor, which otherwise keeps the address space."""
        self._file.close()

    def read(self, address: int, size_bytes: int) -> bytes:
        """Return the bytes at an address, fewer where a page cannot be read."""
        if not 0 < address < _ADDRESS_END or size_bytes <= 0:
            return b""
        try:
            return self._file.read_memory(size_bytes, address)
        except OSError:
            return b""

    def number(self, address: int, size_bytes: int = _WORD_BYTES) -> int | None:
        """Return an unsigned number; None where it cannot be read."""
        data = self.read(address, size_bytes)
        return int.from_bytes(data, "little") if len(data) == size_bytes else None

    def write(self, address: int, data: bytes) -> bool:
        """Write into the process; returns whether all of it was written."""
        try:
            return self._file.write_at(data, address) == len(data)
        except OSError:
            return False


class Records:
    """Structures of `words` words at many addresses, for repeated reading: close ones are read together."""

    def __init__(self, addresses: NDArray[np.uint64], words: int) -> None:
        """`addresses` are multiples of 8; others are never read."""
        self._words = words
        self._count = len(addresses)
        aligned = np.flatnonzero(addresses % np.uint64(_WORD_BYTES) == 0)
        self._order = aligned[np.argsort(addresses[aligned], kind="stable")]
        self._ascending = addresses[self._order]
        self._pieces = _pieces(self._ascending, words * _WORD_BYTES)

    def read(self, memory: ProcessMemory) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Return the words, a row each, and which rows were read; the others are 0."""
        values = np.zeros((self._count, self._words), np.uint64)
        is_read = np.zeros(self._count, np.bool_)
        columns = np.arange(self._words)
        for first, last in self._pieces:
            addresses = self._ascending[first:last]
            start = int(addresses[0])
            data = memory.read(start, int(addresses[-1]) - start + self._words * _WORD_BYTES)
            words = np.frombuffer(data, np.uint64, len(data) // _WORD_BYTES)
            places = ((addresses - np.uint64(start)) // np.uint64(_WORD_BYTES)).astype(np.int64)
            places = places[: np.searchsorted(places, len(words) - self._words, side="right")]
            rows = self._order[first : first + len(places)]
            values[rows] = words[places[:, None] + columns]
            is_read[rows] = True
        return values, is_read


def _pieces(addresses: NDArray[np.uint64], size_bytes: int) -> list[tuple[int, int]]:
    """Ranges of rows of sorted addresses for one system call each."""
    if not len(addresses):
        return []
    far = np.flatnonzero(np.diff(addresses) > _NEAR_BYTES + size_bytes) + 1
    bounds = [0, *far.tolist(), len(addresses)]
    pieces = []
    for first, last in pairwise(bounds):
        while first < last:
            limit = int(addresses[first]) + _PIECE_LIMIT_BYTES
            # Of the addresses' type, since any other type would convert all of them.
            beyond = np.uint64(min(limit, (1 << 64) - 1))
            end = min(last, int(np.searchsorted(addresses, beyond, side="right")))
            pieces.append((first, max(end, first + 1)))
            first = max(end, first + 1)
    return pieces
