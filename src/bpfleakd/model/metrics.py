"""What the metrics are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bpfleakd.model.daemon import DaemonStats, GuardStats
from bpfleakd.model.managed import ManagedHeap
from bpfleakd.model.process import ProcessRow
from bpfleakd.model.report import SiteReport
from bpfleakd.model.verdict import ProcessVerdict
from bpfleakd.model.watching import WatchSummary

__all__ = ["MetricLabel", "MetricsSnapshot", "ProcessUsage"]


class MetricLabel(StrEnum):
    """A label that tells processes apart in the metrics."""

    COMM = "comm"
    UNIT = "unit"
    CONTAINER = "container"
    POD = "pod"
    USER = "user"
    PID = "pid"


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What /proc says of a process; None where it cannot be read."""

    anonymous_bytes: int | None
    threads: int


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """What the metrics are made of: every traced process with its largest call sites, and who is watched.

    `usage`, `verdicts`, `managed` and `goroutines` (how many) are by pid, of processes that run.
    `table_entries` is how full each of the kernel's tables is; `ring_used_share` (0 to 1) how much of the
    ring of address space events waited at the last tick.
    """

    daemon: DaemonStats
    processes: tuple[ProcessRow, ...]
    top_sites: dict[int, tuple[SiteReport, ...]]
    watch: WatchSummary = field(default_factory=WatchSummary)
    guard: GuardStats = field(default_factory=GuardStats)
    usage: dict[int, ProcessUsage] = field(default_factory=dict)
    verdicts: dict[int, ProcessVerdict] = field(default_factory=dict)
    managed: dict[int, ManagedHeap] = field(default_factory=dict)
    goroutines: dict[int, int] = field(default_factory=dict)
    table_entries: dict[str, int] = field(default_factory=dict)
    ring_used_share: float = 0.0
