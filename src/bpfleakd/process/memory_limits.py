"""The limits of a process' memory: of its control groups, its own, and the machine's.

Every limit comes with the memory used of it. For a control group that is the memory that cannot be reclaimed
at once: its charges without the inactive part of the page cache (as kubelet counts it).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bpfleakd.model.limit import MemoryLimit, MemoryLimitKind
from bpfleakd.process.memory_groups import CGROUP, GroupReader, LimitedGroup
from bpfleakd.process.proc_text import kilobyte_field, read_text, whole_number

PROC = Path("/proc")

_RESOURCES = {
    "Max address space": (MemoryLimitKind.ADDRESS_SPACE, "VmSize"),
    "Max data size": (MemoryLimitKind.DATA, "VmData"),
}


class MemoryLimitReader:
    """Reads the limits of many processes at one moment: each, and what they share, is read once."""

    def __init__(self, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._proc = proc
        self._groups = GroupReader(proc, cgroup)
        self._of_machine: tuple[MemoryLimit, ...] | None = None
        self._of_processes: dict[int, tuple[MemoryLimit, ...]] = {}

    def read(self, pid: int) -> tuple[MemoryLimit, ...]:
        """All limits of a process, the one with the least room first; unreadable ones are omitted."""
        found = self._of_processes.get(pid)
        if found is None:
            found = self._of_processes[pid] = tuple(sorted(self._read(pid), key=_room_bytes))
        return found

    def room_bytes(self, pid: int) -> int:
        """How many bytes its narrowest limit leaves to a process; 0 if no limit can be read."""
        narrowest = next(iter(self.read(pid)), None)
        return 0 if narrowest is None else max(0, _room_bytes(narrowest))

    def _read(self, pid: int) -> Iterator[MemoryLimit]:
        if self._of_machine is None:
            self._of_machine = tuple(_of_machine(self._proc))
        yield from map(_of_group, self._groups.limited(pid))
        yield from _of_process(pid, self._proc)
        yield from self._of_machine


def _room_bytes(limit: MemoryLimit) -> int:
    return limit.limit_bytes - limit.used_bytes


def _of_group(group: LimitedGroup) -> MemoryLimit:
    used_bytes = max(0, group.used_bytes - group.idle_bytes)
    return MemoryLimit(MemoryLimitKind.CGROUP, group.limit_bytes, used_bytes)


def _of_process(pid: int, proc: Path) -> Iterator[MemoryLimit]:
    limits = [
        (kind, field, soft)
        for line in read_text(f"{proc}/{pid}/limits").split("\n")
        for name, (kind, field) in _RESOURCES.items()
        if line.startswith(name) and (soft := whole_number(line[len(name) :].split()[0])) is not None
    ]
    status = read_text(f"{proc}/{pid}/status") if limits else ""
    for kind, field, soft_bytes in limits:
        used_bytes = kilobyte_field(status, field)
        if used_bytes is not None:
            yield MemoryLimit(kind, soft_bytes, used_bytes)


def _of_machine(proc: Path) -> Iterator[MemoryLimit]:
    memory = read_text(f"{proc}/meminfo")
    total_bytes, available_bytes = (kilobyte_field(memory, name) for name in ("MemTotal", "MemAvailable"))
    if total_bytes is not None and available_bytes is not None:
        yield MemoryLimit(MemoryLimitKind.HOST, total_bytes, total_bytes - available_bytes)
