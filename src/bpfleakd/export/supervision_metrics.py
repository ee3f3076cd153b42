"""Metrics of supervision: the cost of tracing with its budget and measures, and the watched processes.

All are figures of the host, except for the rates of the fastest growers, ten at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from bpfleakd.export.client import CounterMetricFamily, GaugeMetricFamily, Metric
from bpfleakd.model.daemon import GuardStats
from bpfleakd.model.watching import WatchSummary
from bpfleakd.printable import printable, shortened

_NS_PER_S = 1_000_000_000

_LABEL_CHARS = 128


class ExportedLimits(Struct, frozen=True):
    """The configured limits to compare the figures with.

    `tables` are the capacities of the kernel's tables by name. `budget_percent` (of a core) is per scope: a
    process, the host. `memory_bytes` is the limit of the daemon's own memory.
    """

    tables: Mapping[str, int] = msgspec.field(default_factory=dict)
    budget_percent: Mapping[str, float] = msgspec.field(default_factory=dict)
    memory_bytes: int = 0


def guard_families(guard: GuardStats, limits: ExportedLimits) -> Iterator[Metric]:
    """The families of the host; the cost in each process is among its own figures."""
    yield GaugeMetricFamily(
        "bpfleakd_tracing_cores",
        "Processor time that tracing costs all traced processes together: 1 is a core.",
        guard.host_load_percent / 100,
    )
    budget = GaugeMetricFamily(
        "bpfleakd_tracing_budget_cores",
        "Budget for tracing by the policy: of a process, and of the host.",
        labels=("of",),
    )
    for subject, percent in limits.budget_percent.items():
        budget.add_metric([subject], percent / 100)
    yield budget
    yield GaugeMetricFamily(
        "bpfleakd_memory_limit_bytes",
        "Resident memory above which the daemon drops caches and detaches processes.",
        limits.memory_bytes,
        unit="bytes",
    )
    cost = GaugeMetricFamily(
        "bpfleakd_probe_cost_seconds",
        "Measured cost per probe hit, and extra cost per recorded block.",
        labels=("of",),
    )
    cost.add_metric(["hit"], guard.hit_ns / _NS_PER_S)
    cost.add_metric(["record"], guard.record_ns / _NS_PER_S)
    yield cost
    yield CounterMetricFamily(
        "bpfleakd_processes_recorded_sparsely",
        "Processes recorded more sparsely, because tracing exceeded their budget.",
        guard.cheaper_total,
    )
    yield CounterMetricFamily(
        "bpfleakd_processes_evicted",
        "Processes detached because tracing exceeded a budget or the daemon's memory limit.",
        guard.evicted_total,
    )
    yield CounterMetricFamily(
        "bpfleakd_caches_dropped",
        "Number of times caches were dropped because the daemon exceeded its memory limit.",
        guard.caches_dropped_total,
    )


def watch_families(watch: WatchSummary) -> Iterator[Metric]:
    """The families, also without watched processes."""
    yield GaugeMetricFamily(
        "bpfleakd_watched_processes", "Processes whose anonymous memory is read from /proc.", watch.watched
    )
    yield GaugeMetricFamily(
        "bpfleakd_growing_processes", "Watched processes whose memory grows persistently.", watch.growing
    )
    yield GaugeMetricFamily(
        "bpfleakd_windows_open", "Growing processes that are being traced.", watch.windows_open
    )
    yield CounterMetricFamily(
        "bpfleakd_windows_opened", "Number of times a growing process was traced.", watch.windows_opened_total
    )
    rate = GaugeMetricFamily(
        "bpfleakd_growing_process_bytes_per_second",
        "Growth of the anonymous memory of the fastest growing processes.",
        labels=("pid", "comm"),
    )
    for process in watch.fastest:
        comm = shortened(printable(process.comm), _LABEL_CHARS)
        rate.add_metric([str(process.pid), comm], process.growth_bytes_per_s)
    yield rate
