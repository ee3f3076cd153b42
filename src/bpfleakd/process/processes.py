"""Which processes there are: /proc, read as cheaply as it can be.

`Scanner` reports changes since its last scan, in place of the kernel's process events. It misses processes
that began and ended between two scans. It reads a file for a new process, and once more at the next scan,
since most execute another program right after their fork; and for some of the others in turn, in case that
came later or the pid was reused.

A process that is new has taken a pid, and /proc/loadavg ends with the pid that was given out last: where
that is the same as before, the list of all processes is read only now and then, for those that ended.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from bpfleakd.model.process import ProcessId
from bpfleakd.model.process_events import ProcessChange, ProcessEvent
from bpfleakd.printable import printable

PROC = Path("/proc")

_PF_KTHREAD = 0x0020_0000  # include/linux/sched.h
# Old processes to check per scan: a thousand of them in a minute, for 0.04 % of a core.
_LOOKS_A_SCAN = 16
_LIST_EVERY = 5


class ProcessStat(Struct, frozen=True):
    """Figures of /proc/PID/stat (proc_pid_stat(5))."""

    id: ProcessId
    parent_pid: int
    comm: str
    kernel_thread: bool


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Read the figures; None if the process is gone or a zombie."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # comm may contain spaces and parentheses: the fields begin after the last ")".
    end = line.rindex(b")")
    fields = line[end + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    comm = printable(line[line.index(b"(") + 1 : end].decode(errors="surrogateescape"))
    return ProcessStat(
        ProcessId(pid, int(fields[19])), int(fields[1]), comm, bool(int(fields[6]) & _PF_KTHREAD)
    )


def list_processes(proc: Path = PROC) -> list[ProcessStat]:
    """All processes by start time, so parents normally come before their children."""
    found = (read_stat(pid, proc) for pid in _pids(proc))
    return sorted(filter(None, found), key=lambda stat: (stat.id.start_ticks, stat.id.pid))


class Scanner:
    """Reports the changes in /proc between two scans. In the first scan, every process is new."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._stats: dict[int, ProcessStat] = {}
        self._young: set[int] = set()
        self._turns: deque[int] = deque()
        self._last_pid: int | None = None
        self._unlisted = 0

    def scan(self) -> list[ProcessEvent]:
        """Scan /proc; returns the changes, ends first."""
        events: list[ProcessEvent] = []
        again, new = self._in_turn() | self._young, set()
        if self._is_list_due():
            pids = set(_pids(self._proc))
            gone, new = self._stats.keys() - pids, pids - self._stats.keys()
            events = [ProcessEvent(ProcessChange.EXIT, pid) for pid in gone]
            for pid in gone:
                del self._stats[pid]
        for pid in again & self._stats.keys():
            events += self._second_look(pid)
        events += self._first_looks(new)
        self._young = new
        return events

    def _is_list_due(self) -> bool:
        before, self._last_pid = self._last_pid, _last_pid(self._proc)
        self._unlisted += 1
        if self._last_pid is not None and self._last_pid == before and self._unlisted < _LIST_EVERY:
            return False
        self._unlisted = 0
        return True

    def _in_turn(self) -> set[int]:
        if not self._turns:
            self._turns.extend(self._stats)
        return {self._turns.popleft() for _ in range(min(_LOOKS_A_SCAN, len(self._turns)))}

    def _first_looks(self, pids: Iterable[int]) -> list[ProcessEvent]:
        found = [stat for pid in pids if (stat := read_stat(pid, self._proc))]
        self._stats |= {stat.id.pid: stat for stat in found}
        found.sort(key=lambda stat: stat.id)
        found.sort(key=lambda stat: stat.id.start_ticks)
        return [ProcessEvent(ProcessChange.FORK, stat.id.pid, stat.parent_pid) for stat in found]

    def _second_look(self, pid: int) -> list[ProcessEvent]:
        before, now = self._stats[pid], read_stat(pid, self._proc)
        if now is None or now.id != before.id:
            del self._stats[pid]
            return [ProcessEvent(ProcessChange.EXIT, pid), *(self._first_looks([pid]) if now else ())]
        self._stats[pid] = now
        return [ProcessEvent(ProcessChange.EXEC, pid)] if now.comm != before.comm else []


def _last_pid(proc: Path) -> int | None:
    """The last pid that this pid namespace assigned (proc_loadavg(5)); None if unknown."""
    try:
        return int((proc / "loadavg").read_bytes().split()[4])
    except (OSError, ValueError, IndexError):
        return None


def _pids(proc: Path) -> list[int]:
    return [int(name) for name in os.listdir(proc) if name.isdecimal() and name.isascii()]
