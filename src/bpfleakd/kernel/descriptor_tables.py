"""Tables of open file descriptors, for processes whose descriptors are recorded: bpf/descriptors.h.

A process has a table only during the recording; to the programs, the table is the order to record. The
programs do not see all ways to close a descriptor, so the daemon compares each table with /proc/PID/fd
(`forget`).
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bpfleakd.kernel import abi, bpf

_OVERFLOW_STACK_ID = 0


class DescriptorTable:
    """The table of one process. Owns `fd`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        """Close the descriptor; the table remains."""
        os.close(self._fd)

    def read(self) -> tuple[NDArray[np.uint64], NDArray[np.void]]:
        """The numbers of the descriptors, and a LIVE_BLOCK record of each."""
        batches = [
            (numbers.copy(), blocks.copy())
            for numbers, blocks in bpf.map_batches(self._fd, np.dtype("u8"), abi.LIVE_BLOCK)
        ]
        if not batches:
            return np.zeros(0, np.uint64), np.zeros(0, abi.LIVE_BLOCK)
        return np.concatenate([n for n, _ in batches]), np.concatenate([b for _, b in batches])

    def forget(self, number: int, born_ns: int) -> None:
        """Remove a descriptor that is no longer open, unless its number was reused."""
        key = np.array([number], np.uint64).tobytes()
        value = bpf.map_lookup(self._fd, key, abi.LIVE_BLOCK.itemsize)
        if value is not None and int(np.frombuffer(value, abi.LIVE_BLOCK)["born_ns"][0]) == born_ns:
            bpf.map_delete(self._fd, key)


class DescriptorTables:
    """`descriptors_fd` and `sites_fd` are the maps of these names; the caller still owns them.

    `slot_of` gives the place of a process in the maps.
    """

    def __init__(self, descriptors_fd: int, sites_fd: int, slot_of: Callable[[int], int]) -> None:
        self._outer_fd = descriptors_fd
        self._sites_fd = sites_fd
        self._slot_of = slot_of
        self._fds: dict[int, int] = {}

    def begin(self, pid: int, entries: int) -> None:
        """Start recording the descriptors of a process, at most `entries` at a time. Raises OSError."""
        overflow = np.zeros(1, abi.SITE_KEY)
        overflow["tgid"], overflow["kind"] = pid, abi.DESCRIPTOR_KIND
        overflow["stack_id"] = _OVERFLOW_STACK_ID
        if bpf.map_lookup(self._sites_fd, overflow.tobytes(), abi.SITE.itemsize) is None:
            bpf.map_update(self._sites_fd, overflow.tobytes(), bytes(abi.SITE.itemsize))
        fd = bpf.map_create(
            bpf.MapType.HASH, 8, abi.LIVE_BLOCK.itemsize, entries, bpf.MAP_FLAG_NO_PREALLOC, "bpfleakd_open"
        )
        try:
            bpf.map_update(self._outer_fd, bpf.u32(self._slot_of(pid)), bpf.u32(fd))
        except BaseException:
            os.close(fd)
            raise
        self._fds[pid] = fd

    def adopt(self, pid: int) -> None:
        """Open the table that an earlier daemon made for a process, if any."""
        found = bpf.map_lookup(self._outer_fd, bpf.u32(self._slot_of(pid)), 4)
        if found is not None:
            self._fds[pid] = bpf.map_get(int.from_bytes(found, "little"))

    def end(self, pid: int) -> None:
        """Stop recording the descriptors of a process and drop its table, if any."""
        fd = self._fds.pop(pid, None)
        if fd is not None:
            bpf.map_delete(self._outer_fd, bpf.u32(self._slot_of(pid)))
            os.close(fd)

    def close(self) -> None:
        """Close all tables; the recording continues."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def pids(self) -> list[int]:
        """The processes that have tables."""
        return list(self._fds)

    def open(self, pid: int) -> DescriptorTable | None:
        """The table of a process, for another thread; None if there is no table."""
        fd = self._fds.get(pid)
        return None if fd is None else DescriptorTable(os.dup(fd))
