"""Figures of the daemon, and of the machine that it runs on."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from bpfleakd.model.process_events import ProcessEventStats


class GuardStats(Struct, frozen=True):
    """The cost of tracing, and the measures against it.

    A probe hit costs a program `hit_ns`, and a recorded block `record_ns` more; all traced processes together
    pay `host_load_percent` of a core. `cheaper_total` counts processes recorded more sparsely,
    `evicted_total` those detached because of their cost, `caches_dropped_total` how often the daemon exceeded
    its memory limit.
    """

    hit_ns: float = 0.0
    record_ns: float = 0.0
    host_load_percent: float = 0.0
    cheaper_total: int = 0
    evicted_total: int = 0
    caches_dropped_total: int = 0


class DaemonStats(Struct, frozen=True):
    """Figures of the daemon. `oom_kills_total` counts victims that were traced or watched."""

    version: str
    attach_method: str
    uptime_s: float
    ticks: int
    last_tick_s: float
    processes_attached_total: int
    processes_ended_total: int
    oom_kills_total: int = 0
    process_events: ProcessEventStats = msgspec.field(default_factory=ProcessEventStats)


class CheckStatus(StrEnum):
    """The outcome of a check of this machine."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(Struct, frozen=True):
    """A feature that this machine has or lacks; `way_out` is how to enable it, "" if nothing is needed."""

    name: str
    status: CheckStatus
    detail: str
    way_out: str = ""
