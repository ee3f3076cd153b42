"""Metrics of what tracing costs, and of what was done about it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bpfleakd.model import GuardStats

__all__ = ["guard_families"]

_NS_PER_S = 1_000_000_000


def guard_families(guard: GuardStats) -> Iterator[Metric]:
    """The families of the host; what each process pays is with its other figures."""
    yield GaugeMetricFamily(
        "bpfleakd_tracing_cores",
        "Processor time that tracing costs all traced processes together: 1 is a core.",
        guard.host_load_percent / 100,
    )
    cost = GaugeMetricFamily(
        "bpfleakd_probe_cost_seconds",
        "What a program pays for a run into a probe, and for a block that is recorded on top of that.",
        labels=("of",),
    )
    cost.add_metric(["hit"], guard.hit_ns / _NS_PER_S)
    cost.add_metric(["record"], guard.record_ns / _NS_PER_S)
    yield cost
    yield CounterMetricFamily(
        "bpfleakd_processes_recorded_sparsely",
        "Processes recorded more sparsely, since tracing cost them too much.",
        guard.cheaper_total,
    )
    yield CounterMetricFamily(
        "bpfleakd_processes_given_up",
        "Processes let go of, since tracing cost them, or the daemon, too much.",
        guard.given_up_total,
    )
    yield CounterMetricFamily(
        "bpfleakd_caches_shed",
        "How often caches were let go of, since the daemon took too much memory.",
        guard.caches_shed_total,
    )
