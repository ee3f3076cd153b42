"""Metrics of the daemon itself: version, work, losses and capacities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bpfleakd.export.client import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from bpfleakd.export.figures import label_text
from bpfleakd.export.process_series import ShownSeries
from bpfleakd.model.daemon import DaemonStats
from bpfleakd.model.metrics import MetricsSnapshot
from bpfleakd.model.process_events import ProcessEventStats


def daemon_families(
    snapshot: MetricsSnapshot, shown: ShownSeries, capacities: Mapping[str, int], max_series: int
) -> Iterator[Metric]:
    """`capacities` are the limits of the kernel's tables, by the names of `snapshot.table_entries`."""
    traced = sum(row.process.state == "traced" for row in snapshot.processes)
    yield from _stats_families(snapshot.daemon, traced)
    yield from _process_event_families(snapshot.daemon.process_events)
    yield from _room_families(snapshot, capacities)
    losses = CounterMetricFamily(
        "bpfleakd_losses",
        "Events missed in all processes, by reason; not included in other figures.",
        labels=["reason"],
    )
    for reason, count in shown.losses.items():
        losses.add_metric([label_text(reason)], count)
    yield losses
    yield GaugeMetricFamily(
        "bpfleakd_metrics_series_limit", "Maximum number of series of processes and call sites.", max_series
    )
    yield GaugeMetricFamily(
        "bpfleakd_metrics_processes_left_out",
        "Processes summed as (others), because the limit of series is reached.",
        shown.processes_left_out,
    )
    yield GaugeMetricFamily(
        "bpfleakd_metrics_sites_left_out",
        "Call sites that are not exported, because they are not among the largest.",
        shown.sites_left_out,
    )


def _stats_families(daemon: DaemonStats, traced: int) -> Iterator[Metric]:
    build = {"version": label_text(daemon.version), "attach_method": label_text(daemon.attach_method)}
    yield InfoMetricFamily("bpfleakd_build", "The daemon's version and attach method.", build)
    yield GaugeMetricFamily(
        "bpfleakd_uptime_seconds", "Time since the daemon started.", daemon.uptime_s, unit="seconds"
    )
    yield CounterMetricFamily("bpfleakd_ticks", "Ticks: readings of the kernel's counters.", daemon.ticks)
    yield GaugeMetricFamily("bpfleakd_processes_traced", "Processes traced now.", traced)
    yield CounterMetricFamily(
        "bpfleakd_processes_attached", "Processes attached to.", daemon.processes_attached_total
    )
    yield CounterMetricFamily(
        "bpfleakd_processes_ended",
        "Traced processes that exited or called exec.",
        daemon.processes_ended_total,
    )
    yield CounterMetricFamily(
        "bpfleakd_oom_kills",
        "Traced or watched processes that the kernel killed because memory had run out.",
        daemon.oom_kills_total,
    )


def _process_event_families(events: ProcessEventStats) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "bpfleakd_process_event_source",
        "Source of process events: the kernel, or scans of /proc.",
        {"source": label_text(events.source)},
    )
    yield CounterMetricFamily(
        "bpfleakd_process_events", "Forks, execs, ends and changes of processes.", events.events_total
    )
    yield CounterMetricFamily(
        "bpfleakd_process_event_gaps", "Number of times that process events were missed.", events.gaps_total
    )
    yield CounterMetricFamily("bpfleakd_rescans", "Scans of all processes.", events.rescans_total)
    yield CounterMetricFamily(
        "bpfleakd_short_lived_processes",
        "Processes that exited before they were inspected.",
        events.short_lived_total,
    )
    missed = CounterMetricFamily(
        "bpfleakd_missed_processes",
        "Processes that a rule says to trace, and that exited without having been traced.",
        labels=["rule"],
    )
    for rule, count in events.missed_total.items():
        missed.add_metric([label_text(rule)], count)
    yield missed
    refused = CounterMetricFamily(
        "bpfleakd_refused",
        "Processes that could not be traced although the policy says so.",
        labels=["reason"],
    )
    for reason, count in events.refused_total.items():
        refused.add_metric([label_text(reason)], count)
    yield refused
    states = GaugeMetricFamily("bpfleakd_processes", "Processes of this host by state.", labels=["state"])
    for state, count in events.by_state.items():
        states.add_metric([label_text(state)], count)
    yield states


def _room_families(snapshot: MetricsSnapshot, capacities: Mapping[str, int]) -> Iterator[Metric]:
    entries = GaugeMetricFamily(
        "bpfleakd_table_entries",
        "Entries in the kernel's tables; for live_blocks and process_sites, of the process with the most.",
        labels=["table"],
    )
    for table, count in snapshot.table_entries.items():
        entries.add_metric([label_text(table)], count)
    yield entries
    capacity = GaugeMetricFamily(
        "bpfleakd_table_capacity",
        "Capacity of a table in entries; what exceeds it is counted, not recorded.",
        labels=["table"],
    )
    for table, count in capacities.items():
        capacity.add_metric([label_text(table)], count)
    yield capacity
    yield GaugeMetricFamily(
        "bpfleakd_ring_used_ratio",
        "How much of the ring of address space events waited at the last tick, 0 to 1.",
        snapshot.ring_used_share,
        unit="ratio",
    )
