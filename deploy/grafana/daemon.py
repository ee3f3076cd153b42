"""The daemon itself."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from panels import BYTES, HOST, RATIO, SECONDS, Panel, board, figure, graph, rows

_UP = "{{instance}}"


def daemon() -> dashboard.Dashboard:
    """The daemon itself."""
    panels = [*_figures(), *_work(), *_processes(), _versions()]
    return board(
        "bpfleakd-daemon",
        "bpfleakd / The daemon",
        "Work, cost, losses and tables of the daemons.",
        panels,
    )


def _figures() -> list[Panel]:
    """The row of figures at the top."""
    return [
        figure(
            "Up for", f"min(bpfleakd_uptime_seconds{{{HOST}}})", SECONDS, "The daemon that was started last."
        ),
        figure("Traced", f"sum(bpfleakd_processes_traced{{{HOST}}})", "short", "Processes traced now."),
        figure(
            "Processor",
            f"sum(rate(process_cpu_seconds_total{{{HOST}}} [$__rate_interval]) "
            "and on (instance, job) bpfleakd_build_info)",
            "short",
            "Processor time of the daemons, in cores.",
        ),
        figure(
            "Memory",
            f"max(process_resident_memory_bytes{{{HOST}}} and on (instance, job) bpfleakd_build_info)",
            BYTES,
            "Resident memory of the largest daemon.",
        ),
        figure(
            "Budget used",
            f"max(bpfleakd_tracing_cores{{{HOST}}} "
            '/ on (instance, job) bpfleakd_tracing_budget_cores{of="host"})',
            RATIO,
            "Cost of tracing for all programs of a host, as a share of the budget.",
        ),
        figure(
            "Series",
            f'max(count by (instance) ({{__name__=~"bpfleakd_(process|site)_.+", {HOST}}}) '
            "/ on (instance) bpfleakd_metrics_series_limit)",
            RATIO,
            "Series of processes and call sites, as a share of metrics.max_series.",
        ),
    ]


def _work() -> list[Panel]:
    """Ticks, tables, losses, cost and probes."""
    return [
        graph(
            "Duration of a tick",
            SECONDS,
            "Reading the kernel's counters and updating the tables.",
            (
                "histogram_quantile(0.5, sum by (instance, le) "
                f"(rate(bpfleakd_tick_duration_seconds_bucket{{{HOST}}}[$__rate_interval])))",
                "{{instance}} median",
            ),
            (
                "histogram_quantile(0.99, sum by (instance, le) "
                f"(rate(bpfleakd_tick_duration_seconds_bucket{{{HOST}}}[$__rate_interval])))",
                "{{instance}} 99 %",
            ),
        ),
        graph(
            "Tables",
            RATIO,
            "Fill level of the kernel's tables. A full table refuses entries, and counts them as missed.",
            (
                f"bpfleakd_table_entries{{{HOST}}} / on (instance, job, table) bpfleakd_table_capacity",
                "{{instance}} {{table}}",
            ),
            (f"bpfleakd_ring_used_ratio{{{HOST}}}", "{{instance}} ring of address space events"),
        ),
        graph(
            "Missed, by reason",
            "ops",
            "docs/json.md explains the reasons.",
            (
                f"sum by (instance, reason) (rate(bpfleakd_losses_total{{{HOST}}}[$__rate_interval]))",
                "{{instance}} {{reason}}",
            ),
        ),
        graph(
            "Cost of tracing, in cores",
            "short",
            "For all traced programs of a host, and the budget.",
            (f"bpfleakd_tracing_cores{{{HOST}}}", "{{instance}} cost"),
            (f'bpfleakd_tracing_budget_cores{{{HOST}, of="host"}}', "{{instance}} budget"),
        ),
        graph(
            "Probes",
            "ops",
            "Probe hits per second.",
            (f"sum by (instance) (rate(bpfleakd_process_probe_hits_total{{{HOST}}}[$__rate_interval]))", _UP),
        ),
        graph(
            "Cost of a probe",
            SECONDS,
            "Measured by the daemon on this machine.",
            (f"bpfleakd_probe_cost_seconds{{{HOST}}}", "{{instance}} {{of}}"),
        ),
    ]


def _processes() -> list[Panel]:
    """The daemon's memory, and its processes."""
    return [
        graph(
            "The daemon's memory",
            BYTES,
            "Resident memory, and the limit above which it drops caches and detaches processes.",
            (f"process_resident_memory_bytes{{{HOST}}} and on (instance, job) bpfleakd_build_info", _UP),
            (f"bpfleakd_memory_limit_bytes{{{HOST}}}", "{{instance}} limit"),
        ),
        graph(
            "Processes, by state",
            "short",
            "Supervision states of the processes of a host.",
            (f"bpfleakd_processes{{{HOST}}}", "{{instance}} {{state}}"),
        ),
        graph(
            "Attached, ended, events",
            "ops",
            "Attached processes, traced processes that ended, and process events (fork, exec, exit).",
            (
                f"sum by (instance) (rate(bpfleakd_processes_attached_total{{{HOST}}}[$__rate_interval]))",
                "attached",
            ),
            (
                f"sum by (instance) (rate(bpfleakd_processes_ended_total{{{HOST}}}[$__rate_interval]))",
                "ended",
            ),
            (
                f"sum by (instance) (rate(bpfleakd_process_events_total{{{HOST}}}[$__rate_interval]))",
                "events",
            ),
        ),
        graph(
            "Reduced, for want of room or budget",
            "short",
            "Processes that were detached or recorded more coarsely, dropped caches, metrics without room.",
            (f"sum(bpfleakd_processes_evicted_total{{{HOST}}})", "detached"),
            (f"sum(bpfleakd_processes_recorded_sparsely_total{{{HOST}}})", "recorded more coarsely"),
            (f"sum(bpfleakd_caches_dropped_total{{{HOST}}})", "caches dropped"),
            (f"sum(bpfleakd_metrics_processes_left_out{{{HOST}}})", "processes summed as (others)"),
            (f"sum(bpfleakd_metrics_sites_left_out{{{HOST}}})", "call sites not exported"),
        ),
        graph(
            "Without a daemon",
            SECONDS,
            "The longest time that a traced process had no daemon.",
            (f"max by (instance) (bpfleakd_process_gap_seconds{{{HOST}}})", _UP),
        ),
    ]


def _versions() -> Panel:
    return rows(
        "Versions",
        "short",
        "Versions of the daemons, and how each attaches.",
        f"bpfleakd_build_info{{{HOST}}}",
        "instance",
        "version",
        "attach_method",
        value="daemons",
        span=12,
    )
