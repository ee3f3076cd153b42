"""Metrics on the cost of tracing, its budget, and the measures against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Struct

from bpfleakd.export.client import CounterMetricFamily, GaugeMetricFamily, Metric
from bpfleakd.model.daemon import GuardStats

_NS_PER_S = 1_000_000_000


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
