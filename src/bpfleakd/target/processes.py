"""Which processes there are: /proc, read as cheaply as it can be.

`Scanner` tells what changed since it last looked, in place of the kernel's process events. What happened and
was over between two scans it cannot tell. It reads a file for a process that is new, and once more at the
next scan, since most execute another program right after their fork; and all of them every 16th time, in
case that came later or the pid is another process' by now.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bpfleakd.model.life import LifeChange, LifeEvent
from bpfleakd.model.process import ProcessId
from bpfleakd.printable import printable

__all__ = ["ProcessStat", "Scanner", "list_processes", "read_stat"]

PROC = Path("/proc")

_PF_KTHREAD = 0x0020_0000  # include/linux/sched.h
_ALL_EVERY = 16


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What /proc/PID/stat says of a process (proc_pid_stat(5))."""

    id: ProcessId
    parent_pid: int
    comm: str
    kernel_thread: bool


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """Read it; None if the process is gone or a zombie."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # comm may hold spaces and parentheses: the fields begin after the last ")".
    end = line.rindex(b")")
    fields = line[end + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    comm = printable(line[line.index(b"(") + 1 : end].decode(errors="surrogateescape"))
    return ProcessStat(
        ProcessId(pid, int(fields[19])), int(fields[1]), comm, bool(int(fields[6]) & _PF_KTHREAD)
    )


def list_processes(proc: Path = PROC) -> list[ProcessStat]:
    """All processes, parents before their children as far as that can be told: by start time."""
    found = (read_stat(pid, proc) for pid in _pids(proc))
    return sorted(filter(None, found), key=lambda stat: (stat.id.start_ticks, stat.id.pid))


class Scanner:
    """Tells what changed in /proc from one scan to the next. The first finds every process new."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._known: dict[int, ProcessStat] = {}
        self._young: set[int] = set()
        self._scans = 0

    def scan(self) -> list[LifeEvent]:
        """Look again; returns what changed, ends first."""
        pids = set(_pids(self._proc))
        gone = self._known.keys() - pids
        new = pids - self._known.keys()
        again = self._known.keys() & pids if self._scans % _ALL_EVERY == 0 else self._young & pids
        self._scans += 1
        self._young = new
        events = [LifeEvent(LifeChange.EXIT, pid) for pid in gone]
        for pid in gone:
            del self._known[pid]
        for pid in again:
            events += self._second_look(pid)
        events += self._first_looks(new)
        return events

    def _first_looks(self, pids: Iterable[int]) -> list[LifeEvent]:
        found = [stat for pid in pids if (stat := read_stat(pid, self._proc))]
        self._known |= {stat.id.pid: stat for stat in found}
        found.sort(key=lambda stat: stat.id)
        found.sort(key=lambda stat: stat.id.start_ticks)
        return [LifeEvent(LifeChange.FORK, stat.id.pid, stat.parent_pid) for stat in found]

    def _second_look(self, pid: int) -> list[LifeEvent]:
        before, now = self._known[pid], read_stat(pid, self._proc)
        if now is None or now.id != before.id:
            del self._known[pid]
            return [LifeEvent(LifeChange.EXIT, pid), *(self._first_looks([pid]) if now else ())]
        self._known[pid] = now
        return [LifeEvent(LifeChange.EXEC, pid)] if now.comm != before.comm else []


def _pids(proc: Path) -> list[int]:
    return [int(name) for name in os.listdir(proc) if name.isdecimal() and name.isascii()]
