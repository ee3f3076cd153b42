"""The map `processes`, in memory: what the programs know of a process, and what they are told.

Rules:
  - A traced process has a slot, its place in all maps that are arrays; one that nobody has is of tgid 0.
  - A slot is zeroed before it is given its tgid, and the map `slots` leads to it only after that.
  - What the daemon changes while programs run are single words, which they see whole.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from bpfleakd.kernel import abi, bpf

__all__ = ["NoSlot", "ProcessSlots"]


class NoSlot(Exception):
    """Every slot is taken."""


class ProcessSlots:
    """`processes_fd` and `slots_fd` are of the maps of these names; they stay the caller's."""

    def __init__(self, processes_fd: int, slots_fd: int) -> None:
        self._count = bpf.map_info(processes_fd).entries
        pages = -(-self._count * abi.PROCESS.itemsize // mmap.PAGESIZE)
        self._memory = mmap.mmap(processes_fd, pages * mmap.PAGESIZE)
        self._rows = np.frombuffer(self._memory, abi.PROCESS, self._count)
        self._slots_fd = slots_fd
        self._slots = {int(self._rows["tgid"][slot]): int(slot) for slot in self._rows["tgid"].nonzero()[0]}

    def close(self) -> None:
        """Unmap it."""
        self._rows = np.empty(0, abi.PROCESS)
        # A row that somebody still looks at keeps it mapped until then.
        with contextlib.suppress(BufferError):
            self._memory.close()

    def take(self, pid: int) -> int:
        """Give a process a slot, zeroed: its recording is stopped. Raises NoSlot, or OSError."""
        taken = set(self._slots.values())
        slot = next((slot for slot in range(self._count) if slot not in taken), None)
        if slot is None:
            raise NoSlot
        self._rows[slot] = np.zeros((), abi.PROCESS)
        self._slots[pid] = slot
        self._rows["tgid"][slot] = pid
        bpf.map_update(self._slots_fd, _u32(pid), _u32(slot))
        return slot

    def give_back(self, pid: int) -> None:
        """The process has no slot any more."""
        slot = self._slots.pop(pid, None)
        if slot is not None:
            bpf.map_delete(self._slots_fd, _u32(pid))
            self._rows[slot] = np.zeros((), abi.PROCESS)

    def slot_of(self, pid: int) -> int:
        """The slot of a process. KeyError if it has none."""
        return self._slots[pid]

    def pids(self) -> list[int]:
        """The processes that have a slot."""
        return list(self._slots)

    def row(self, pid: int) -> np.void:
        """What the programs say of a process now: a copy of its PROCESS, zero for one without a slot."""
        slot = self._slots.get(pid)
        return np.zeros((), abi.PROCESS)[()] if slot is None else self._rows[slot].copy()

    def set_word(self, pid: int, field: str, value: int) -> None:
        """Write a field of a process; nothing, if it has no slot."""
        slot = self._slots.get(pid)
        if slot is not None:
            self._rows[field][slot] = value


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")
