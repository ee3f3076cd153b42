"""How often the kernel has skipped runs of the tracepoint programs; each skipped run loses a report.

On a preemptible kernel there are two reasons, both about the CPU that the program would have run on:

  - A syscall tracepoint finds a bpf system call of another thread preempted there, such as the daemon's own
    look into a map (bpf_disable_instrumentation). It happens since Linux 5.7, and is counted since 6.7.
  - A raw tracepoint finds the same program preempted there, in another thread (__bpf_trace_run). It happens
    since 7.0, where raw tracepoints can be preempted (a46023d5616e).

Uprobe programs have no such rule.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from bpfleakd.kernel import bpf


class SkippedRuns(NamedTuple):
    """Skipped runs since the programs were loaded, of all processes, by what they would have reported."""

    address_space_changes: int = 0
    execs: int = 0
    thread_ends: int = 0


class SkippedRunCounters:
    """The counters of the programs pinned in a directory. Raises OSError."""

    def __init__(self, directory: Path) -> None:
        self._groups: tuple[list[int], ...] = ([], [], [])
        functions = (("syscall_enter", "syscall_exit"), ("process_exec",), ("thread_exit",))
        try:
            for fds, names in zip(self._groups, functions, strict=True):
                for name in names:
                    fds.append(bpf.object_get(directory / name))
        except OSError:
            self.close()
            raise

    def read(self) -> SkippedRuns:
        """The skipped runs until now."""
        return SkippedRuns(*(sum(map(bpf.program_misses, fds)) for fds in self._groups))

    def close(self) -> None:
        """Close the programs."""
        for fds in self._groups:
            while fds:
                os.close(fds.pop())
