"""Which pages of a process are in memory (/proc/PID/pagemap), and the stack pointers of its threads.

smaps only has figures of whole mappings, and the kernel joins neighbours that were mapped by different
callers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpfleakd.process.reading.reads import TargetFile

PROC = Path("/proc")

# Documentation/admin-guide/mm/pagemap.rst
_PAGE_BYTES = 4096
_ENTRY_BYTES = 8
PRESENT = np.uint64(1 << 63)
SWAPPED = np.uint64(1 << 62)
FILE_OR_SHARED = np.uint64(1 << 61)
_CHUNK_PAGES = 1 << 17
# 32 GiB of address space, which takes 64 MiB to read in about 0.1 s.
PAGES_MAX = 8 << 20
THREADS_MAX = 4096


def read_entries(pagemap: TargetFile, first: int, last: int) -> Iterator[NDArray[np.uint64]]:
    """The entries of the pages from number `first` to before `last`, in arrays, one after the other.

    They end early if the process has no memory any more. Raises OSError.
    """
    while first < last:
        data = pagemap.read_at(min(last - first, _CHUNK_PAGES) * _ENTRY_BYTES, first * _ENTRY_BYTES)
        if not data:
            return
        entries = np.frombuffer(data, np.uint64)
        yield entries
        first += len(entries)


class Pagemap:
    """Counts pages, at most `pages_max` in total: ranges that exceed the rest return None."""

    def __init__(self, pid: int, proc: Path = PROC, *, pages_max: int = PAGES_MAX) -> None:
        self._pid = pid
        self._path = proc / str(pid) / "pagemap"
        self._pages_left = pages_max

    def count(self, start: int, end: int) -> tuple[int, int] | None:
        """Resident and swapped bytes from `start` to `end`; None if they are unknown.

        A page that was read before it was written is the kernel's page of zeroes. It counts here, though not
        in smaps.
        """
        first, last = start // _PAGE_BYTES, end // _PAGE_BYTES
        if last - first > self._pages_left:
            return None
        self._pages_left -= last - first
        resident = swapped = 0
        try:
            with TargetFile(self._pid, self._path) as file:
                for entries in read_entries(file, first, last):
                    resident += int(np.count_nonzero(entries & PRESENT))
                    swapped += int(np.count_nonzero(entries & SWAPPED))
                    first += len(entries)
        except (OSError, ValueError):
            return None
        return (resident * _PAGE_BYTES, swapped * _PAGE_BYTES) if first == last else None


def present_pages(pid: int, start: int, end: int, proc: Path = PROC) -> NDArray[np.bool_]:
    """Which pages from `start` to `end` (whole pages) are in memory or swapped out.

    Pages beyond PAGES_MAX and unreadable ones count as absent.
    """
    first, at = start // _PAGE_BYTES, 0
    present = np.zeros((end - start) // _PAGE_BYTES, bool)
    try:
        with TargetFile(pid, proc / str(pid) / "pagemap") as file:
            for entries in read_entries(file, first, first + min(len(present), PAGES_MAX)):
                present[at : at + len(entries)] = (entries & (PRESENT | SWAPPED)) != 0
                at += len(entries)
    except (OSError, ValueError):
        pass
    return present


def stack_pointers(pid: int, proc: Path = PROC, *, threads_max: int = THREADS_MAX) -> list[int]:
    """The stack pointers of the threads that wait in the kernel; running threads have none to read."""
    pointers = []
    try:
        tids = os.listdir(proc / str(pid) / "task")[:threads_max]
    except OSError:
        return []
    for tid in tids:
        try:
            # Number and arguments of the call, stack pointer, program counter; or "running".
            fields = (proc / str(pid) / "task" / tid / "syscall").read_bytes().split()
            pointers.append(int(fields[-2], 16))
        except (OSError, ValueError, IndexError):
            continue
    return pointers
