"""Selects processes by name, systemd unit or container, with the policy's patterns.

The selection never includes processes that the policy always excludes, the daemon's helpers, or the
requesting process, which would match a request for all Python programs.
"""

from __future__ import annotations

from pathlib import Path

from bpfleakd.model.process import ProcessSelection, TracingMode
from bpfleakd.process.policy.rules import Match, Policy, Rule
from bpfleakd.process.policy.subject import ProcSubject
from bpfleakd.process.processes import list_processes

PROC = Path("/proc")


def selected_pids(
    selection: ProcessSelection, *, own_pid: int, asking_pid: int, proc: Path = PROC
) -> tuple[int, ...]:
    """The pids of processes that match all patterns, parents before children."""
    names = _patterns_of_name(selection.name)
    container = None if selection.container is None else f"{selection.container}*"
    rules = [
        Rule(Match(comm=comm, exe=exe, unit=selection.unit, container=container), TracingMode.EXACT)
        for comm, exe in names
    ]
    policy = Policy(rules, default=TracingMode.OFF)
    found, own = [], {own_pid}
    for stat in list_processes(proc):
        pid = stat.id.pid
        if stat.parent_pid in own:
            own.add(pid)
        if pid in own or pid == asking_pid:
            continue
        if policy.decide(ProcSubject(stat, proc), own_pid).mode is not TracingMode.OFF:
            found.append(pid)
    return tuple(found)


def _patterns_of_name(name: str | None) -> list[tuple[str | None, str | None]]:
    """Patterns for comm and exe: the kernel cuts comm after 15 characters, and a program may change it."""
    return [(None, None)] if name is None else [(name, None), (None, f"*/{name}")]
