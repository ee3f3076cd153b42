"""The charges of the traced processes' control groups, for the metrics; read now and then."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from bpfleakd.model.container import GroupMemory
from bpfleakd.process.memory_groups import CGROUP, GroupReader, read_group_memory

PROC = Path("/proc")

# Reading memory.stat makes the kernel add up its per-processor counts: too much for each tick.
_PAUSE_NS = 10_000_000_000
# Those with the least room.
_GROUPS_MAX = 100


@dataclass(slots=True)
class ContainerFigures:
    """The figures of the last reading; `of` reads again if they are old, or if there are other processes."""

    proc: Path = PROC
    cgroup: Path = CGROUP
    _pids: frozenset[int] = field(default=frozenset(), init=False)
    _due_ns: int = field(default=0, init=False)
    _groups: tuple[GroupMemory, ...] = field(default=(), init=False)

    def of(self, pids: Collection[int], now_ns: int) -> tuple[GroupMemory, ...]:
        """The groups that limit these processes, each once, the one with the least room first."""
        wanted = frozenset(pids)
        if now_ns >= self._due_ns or wanted != self._pids:
            found = map(GroupReader(self.proc, self.cgroup).narrowest, wanted)
            groups = {group.directory: group for group in found if group is not None}
            nearest = sorted(groups.values(), key=lambda group: (group.room_bytes, group.cgroup))
            self._groups = tuple(map(read_group_memory, nearest[:_GROUPS_MAX]))
            self._pids, self._due_ns = wanted, now_ns + _PAUSE_NS
        return self._groups
