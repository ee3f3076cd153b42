"""The daemon itself."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from panels import BYTES, HOST, RATIO, SECONDS, board, figure, graph, rows


def daemon() -> dashboard.Dashboard:
    """The daemon itself."""
    up = "{{instance}}"
    panels = [
        figure(
            "Up for", f"min(bpfleakd_uptime_seconds{{{HOST}}})", SECONDS, "The daemon that was started last."
        ),
        figure("Traced", f"sum(bpfleakd_processes_traced{{{HOST}}})", "short", "Processes traced now."),
        figure(
            "Processor",
            f"sum(rate(process_cpu_seconds_total{{{HOST}}} [$__rate_interval]) "
            "and on (instance, job) bpfleakd_build_info)",
            "short",
            "What the daemons take themselves, in cores.",
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
            "What tracing costs all programs of a host, as a part of what it may.",
        ),
        figure(
            "Series",
            f'max(count by (instance) ({{__name__=~"bpfleakd_(process|site)_.+", {HOST}}}) '
            "/ on (instance) bpfleakd_metrics_series_limit)",
            RATIO,
            "Series of processes and call sites, as a part of metrics.max_series.",
        ),
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
            "How full the kernel's tables are; what finds no room is counted as missed.",
            (
                f"bpfleakd_table_entries{{{HOST}}} / on (instance, job, table) bpfleakd_table_capacity",
                "{{instance}} {{table}}",
            ),
            (f"bpfleakd_ring_used_ratio{{{HOST}}}", "{{instance}} ring of address space events"),
        ),
        graph(
            "Missed, by reason",
            "ops",
            "docs/json.md says what the reasons mean.",
            (
                f"sum by (instance, reason) (rate(bpfleakd_losses_total{{{HOST}}}[$__rate_interval]))",
                "{{instance}} {{reason}}",
            ),
        ),
        graph(
            "What tracing costs the programs",
            "short",
            "In cores, for all traced programs of a host, and the budget.",
            (f"bpfleakd_tracing_cores{{{HOST}}}", "{{instance}} cost"),
            (f'bpfleakd_tracing_budget_cores{{{HOST}, of="host"}}', "{{instance}} budget"),
        ),
        graph(
            "Probes",
            "ops",
            "Probe hits per second.",
            (f"sum by (instance) (rate(bpfleakd_process_probe_hits_total{{{HOST}}}[$__rate_interval]))", up),
        ),
        graph(
            "What a probe costs",
            SECONDS,
            "Measured by the daemon on this machine.",
            (f"bpfleakd_probe_cost_seconds{{{HOST}}}", "{{instance}} {{of}}"),
        ),
        graph(
            "Memory of the daemon",
            BYTES,
            "Resident memory, and the limit above which it drops caches and detaches processes.",
            (f"process_resident_memory_bytes{{{HOST}}} and on (instance, job) bpfleakd_build_info", up),
            (f"bpfleakd_memory_limit_bytes{{{HOST}}}", "{{instance}} limit"),
        ),
        graph(
            "Processes, by state",
            "short",
            "Supervision states of the processes of a host.",
            (f"bpfleakd_processes{{{HOST}}}", "{{instance}} {{state}}"),
        ),
        graph(
            "Coming and going",
            "ops",
            "Processes attached to and ended, forks, execs and ends that were noticed.",
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
            "Let go of",
            "short",
            "Processes given up or recorded more sparsely, caches shed, metrics that there is no room for.",
            (f"sum(bpfleakd_processes_evicted_total{{{HOST}}})", "given up"),
            (f"sum(bpfleakd_processes_recorded_sparsely_total{{{HOST}}})", "recorded more sparsely"),
            (f"sum(bpfleakd_caches_dropped_total{{{HOST}}})", "caches shed"),
            (f"sum(bpfleakd_metrics_processes_left_out{{{HOST}}})", "processes summed as (others)"),
            (f"sum(bpfleakd_metrics_sites_left_out{{{HOST}}})", "call sites not exported"),
        ),
        graph(
            "Without a daemon",
            SECONDS,
            "How long traced processes were on their own between two daemons.",
            (f"max by (instance) (bpfleakd_process_gap_seconds{{{HOST}}})", up),
        ),
        rows(
            "Versions",
            "short",
            "And how each attaches.",
            f"bpfleakd_build_info{{{HOST}}}",
            "instance",
            "version",
            "attach_method",
            value="daemons",
            span=12,
        ),
    ]
    return board(
        "bpfleakd-daemon",
        "bpfleakd / The daemon",
        "What the daemons do, take, miss and have room for.",
        panels,
    )
