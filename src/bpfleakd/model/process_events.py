"""Processes come and go."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["ProcessChange", "ProcessEvent", "ProcessEventStats"]


class ProcessChange(StrEnum):
    """What happened to a process. GAP is of no process: events were missed, and all have to be looked at.

    CHANGED is another name or user: rules may decide otherwise.
    """

    FORK = "fork"
    EXEC = "exec"
    CHANGED = "changed"
    EXIT = "exit"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class ProcessEvent:
    """A change in the life of process `pid`; `parent_pid` is known of a FORK, and 0 otherwise."""

    change: ProcessChange
    pid: int = 0
    parent_pid: int = 0


@dataclass(frozen=True, slots=True)
class ProcessEventStats:
    """How processes are noticed, and what became of them.

    `source` is "events" (the kernel tells) or "scan" (/proc is read, more slowly). `gaps_total` is how often
    events were missed, `short_lived_total` how many processes ended before they were looked at,
    `refused_total` by error code. `by_state` is of processes now.
    """

    source: str = "none"
    events_total: int = 0
    gaps_total: int = 0
    rescans_total: int = 0
    short_lived_total: int = 0
    refused_total: dict[str, int] = field(default_factory=dict)
    by_state: dict[str, int] = field(default_factory=dict)
