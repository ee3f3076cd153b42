"""Starts, changes and ends of processes."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct


class ProcessChange(StrEnum):
    """Kinds of changes. GAP belongs to no process: events were missed, so all processes must be checked.

    CHANGED is a new name or user, for which the rules may decide differently.
    """

    FORK = "fork"
    EXEC = "exec"
    CHANGED = "changed"
    EXIT = "exit"
    GAP = "gap"


class ProcessEvent(Struct, frozen=True):
    """A change in the life of process `pid`; `parent_pid` is set for a FORK, 0 otherwise."""

    change: ProcessChange
    pid: int = 0
    parent_pid: int = 0


class ProcessEventStats(Struct, frozen=True):
    """How processes are noticed, and how many were missed or refused.

    `source` is "events" (from the kernel) or "scan" (of /proc, slower). `gaps_total` is how often events were
    missed, `short_lived_total` how many processes ended before they were checked. `missed_total` counts, by
    rule, processes that ended before they could be traced according to the policy; `refused_total` counts
    those that could not be traced, by error code. `by_state` counts current processes.
    """

    source: str = "none"
    events_total: int = 0
    gaps_total: int = 0
    rescans_total: int = 0
    short_lived_total: int = 0
    missed_total: dict[str, int] = msgspec.field(default_factory=dict)
    refused_total: dict[str, int] = msgspec.field(default_factory=dict)
    by_state: dict[str, int] = msgspec.field(default_factory=dict)
