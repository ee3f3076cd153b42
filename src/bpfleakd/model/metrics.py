"""The input of the metrics."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from bpfleakd.model.address_space import BillLine
from bpfleakd.model.container import GroupMemory
from bpfleakd.model.daemon import DaemonStats, GuardStats
from bpfleakd.model.process import ProcessRow
from bpfleakd.model.report import SiteReport
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.verdict import ProcessVerdict
from bpfleakd.model.watching import WatchSummary


class MetricLabel(StrEnum):
    """A label that distinguishes processes in the metrics."""

    COMM = "comm"
    UNIT = "unit"
    CONTAINER = "container"
    POD = "pod"
    USER = "user"
    PID = "pid"


class ProcessUsage(Struct, frozen=True):
    """Figures on a process from /proc; None if they cannot be read."""

    anonymous_bytes: int | None
    threads: int
    descriptors: int | None = None


class MetricsSnapshot(Struct, frozen=True):
    """The input of the metrics: all traced processes with their largest call sites, and watched processes.

    `usage`, `verdicts`, `managed` and `goroutines` (how many) are by pid, of running processes.
    `table_entries` are the entries of each of the kernel's tables; `ring_used_share` (0 to 1) is the share of
    the ring of address space events that was unread at the last tick. `containers` are the control groups
    that limit them; `bills`, by pid, the bill of each at the last change of its memory by a tenth.
    """

    daemon: DaemonStats
    processes: tuple[ProcessRow, ...]
    top_sites: dict[int, tuple[SiteReport, ...]]
    watch: WatchSummary = msgspec.field(default_factory=WatchSummary)
    guard: GuardStats = msgspec.field(default_factory=GuardStats)
    usage: dict[int, ProcessUsage] = msgspec.field(default_factory=dict)
    verdicts: dict[int, ProcessVerdict] = msgspec.field(default_factory=dict)
    managed: dict[int, ManagedHeap] = msgspec.field(default_factory=dict)
    goroutines: dict[int, int] = msgspec.field(default_factory=dict)
    table_entries: dict[str, int] = msgspec.field(default_factory=dict)
    ring_used_share: float = 0.0
    containers: tuple[GroupMemory, ...] = ()
    bills: dict[int, tuple[BillLine, ...]] = msgspec.field(default_factory=dict)
