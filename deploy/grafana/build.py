"""Writes the dashboards: `build.py [DIRECTORY]`, by default the one beside this file.

The dashboards in the repository are what this writes; a test compares them. Made with Grafana's own SDK, so
that keys are right: `make setup FOR=test` installs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
HOST = 'instance=~"$instance"'
PROCESS = f'{HOST}, comm=~"$comm"'
BYTES, RATE, SECONDS, RATIO = "bytes", "Bps", "s", "percentunit"
WIDTH = 24

Panel = stat.Panel | table.Panel | timeseries.Panel


def query(expression: str, legend: str = "") -> prometheus.Dataquery:
    """A query over the time that is shown."""
    return prometheus.Dataquery().expr(expression).legend_format(legend).range()


def figure(title: str, expression: str, unit: str, description: str) -> stat.Panel:
    """One number with its course."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .with_target(query(expression, title).ref_id("A"))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .unit(unit)
        .graph_mode(BigValueGraphMode.AREA)
        .color_mode(BigValueColorMode.VALUE)
        .no_value("-")
        .height(4)
        .span(4)
    )


def graph(
    title: str, unit: str, description: str, *queries: tuple[str, str], span: int = 12
) -> timeseries.Panel:
    """Lines over time; `queries` are expressions with their legends."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .fill_opacity(8)
        .line_width(1)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull"])
        )
        .height(9)
        .span(span)
    )
    for number, (expression, legend) in enumerate(queries):
        panel.with_target(query(expression, legend).ref_id(chr(ord("A") + number)))
    return panel


def rows(
    title: str,
    unit: str,
    description: str,
    expression: str,
    *columns: str,
    link: tuple[str, str, str] | None = None,
) -> table.Panel:
    """A table of what is now: `columns` are labels, the last one is the value. `link`: column, text, URL."""
    shown = [*columns, "Value"]
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .with_target(
            prometheus.Dataquery().expr(expression).instant().format(PromQueryFormat.TABLE).ref_id("A")
        )
        .with_transformation(
            DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": shown}})
        )
        .with_transformation(
            DataTransformerConfig(
                id_val="organize",
                options={"indexByName": {name: index for index, name in enumerate(shown)}},
            )
        )
        .override_by_name("Value", [DynamicConfigValue("unit", unit)])
        .height(9)
        .span(WIDTH)
    )
    if link is not None:
        column, text, url = link
        links = [{"title": text, "url": url, "targetBlank": True}]
        panel.override_by_name(column, [DynamicConfigValue("links", links)])
    return panel


def label_variable(name: str, expression: str, *, many: bool) -> dashboard.QueryVariable:
    """A choice among the values of a label."""
    variable = (
        dashboard.QueryVariable(name)
        .label(name)
        .datasource(SOURCE)
        .query({"query": expression, "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if many:
        variable.multi(True).include_all(True).all_value(".*").current(
            VariableOption(selected=True, text="All", value="$__all")
        )
    return variable


def board(
    uid: str, title: str, description: str, panels: list[Panel], *variables: object
) -> dashboard.Dashboard:
    """A dashboard with the variables and links that all have."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["bpfleakd"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("bpfleakd")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["bpfleakd"])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(label_variable("instance", "label_values(bpfleakd_build_info, instance)", many=True))
    )
    for variable in variables:
        made.with_variable(variable)
    for panel in panels:
        made.with_panel(panel)
    return made


def hosts() -> dashboard.Dashboard:
    """Who leaks."""
    to_process = "/d/bpfleakd-process?var-instance=${__data.fields.instance}&var-comm=${__data.fields.comm}"
    panels = [
        figure("Traced", f"sum(bpfleakd_processes_traced{{{HOST}}})", "short", "Processes traced now."),
        figure(
            "Leaking",
            f"sum(bpfleakd_process_leaks{{{HOST}}})",
            "short",
            "Processes with a call site that leaks.",
        ),
        figure(
            "Leaked",
            f"sum(bpfleakd_process_leak_bytes_per_second{{{HOST}}})",
            RATE,
            "What all call sites that leak gain for good.",
        ),
        figure(
            "Live",
            f"sum(bpfleakd_process_live_bytes{{{HOST}}})",
            BYTES,
            "Allocated since attach, not freed yet.",
        ),
        figure(
            "Next limit in",
            f"min(bpfleakd_process_limit_reached_seconds{{{HOST}}})",
            SECONDS,
            "When the first process reaches its memory limit at this growth.",
        ),
        figure(
            "Missed",
            f"sum(rate(bpfleakd_losses_total{{{HOST}}}[$__rate_interval]))",
            "ops",
            "Events that the figures do not include, for any reason.",
        ),
        rows(
            "Call sites that leak",
            RATE,
            "The fastest first; the same call site on several hosts has the same fingerprint.",
            "topk(20, sum by (instance, comm, function, site) "
            f"(bpfleakd_site_leak_bytes_per_second{{{HOST}}} > 0)) "
            "* on (instance, site) group_left (stack) bpfleakd_site_info",
            "instance",
            "comm",
            "function",
            "site",
            "stack",
            link=("comm", "The process", to_process),
        ),
        graph(
            "Leaks, by process",
            RATE,
            "What the call sites of a process that leak gain.",
            (
                f"topk(10, bpfleakd_process_leak_bytes_per_second{{{HOST}}})",
                "{{instance}} {{comm}} {{unit}} {{pid}}",
            ),
        ),
        graph(
            "Live bytes, by process",
            BYTES,
            "Allocated since attach and not freed yet.",
            (f"topk(10, bpfleakd_process_live_bytes{{{HOST}}})", "{{instance}} {{comm}} {{unit}} {{pid}}"),
        ),
        graph(
            "Time until a limit is reached",
            SECONDS,
            "Of the limit with the least room, at the growth of now.",
            (
                f"bottomk(10, bpfleakd_process_limit_reached_seconds{{{HOST}}})",
                "{{instance}} {{comm}} {{unit}} {{pid}}",
            ),
        ),
        graph(
            "Watched from outside",
            "short",
            "Processes whose memory is read from /proc, those that grow, those that are traced for a while.",
            (f"sum(bpfleakd_watched_processes{{{HOST}}})", "watched"),
            (f"sum(bpfleakd_growing_processes{{{HOST}}})", "growing"),
            (f"sum(bpfleakd_windows_open{{{HOST}}})", "traced for a while"),
        ),
        rows(
            "The same leak on several hosts",
            "short",
            "On how many hosts a call site has the verdict leak.",
            "topk(20, count by (function, site) "
            f'(count by (instance, function, site) (bpfleakd_site_verdict{{{HOST}, verdict="leak"}})))',
            "function",
            "site",
        ),
    ]
    return board(
        "bpfleakd-hosts", "bpfleakd / Who leaks", "Which processes and call sites leak, on all hosts.", panels
    )


def process() -> dashboard.Dashboard:
    """What one process holds, and why."""
    to_site = "${bpfleakd_url}/#/process/${pid}/site/${__data.fields.site}"
    who = "{{comm}} {{unit}} {{pid}}"
    where = "{{function}} {{site}}"
    panels = [
        figure(
            "Leaking",
            f"sum(bpfleakd_process_leaks{{{PROCESS}}})",
            "short",
            "Processes of this name that leak.",
        ),
        figure(
            "Leaked",
            f"sum(bpfleakd_process_leak_bytes_per_second{{{PROCESS}}})",
            RATE,
            "What the call sites that leak gain for good.",
        ),
        figure(
            "Live",
            f"sum(bpfleakd_process_live_bytes{{{PROCESS}}})",
            BYTES,
            "Allocated since attach, not freed yet.",
        ),
        figure(
            "Limit in",
            f"min(bpfleakd_process_limit_reached_seconds{{{PROCESS}}})",
            SECONDS,
            "When the limit with the least room is reached at this growth.",
        ),
        figure(
            "Room",
            f"min(bpfleakd_process_memory_room_bytes{{{PROCESS}}})",
            BYTES,
            "What is left of that limit.",
        ),
        figure(
            "Threads",
            f"sum(bpfleakd_process_threads{{{PROCESS}}})",
            "short",
            "Threads of all that are summed.",
        ),
        rows(
            "Verdicts",
            RATIO,
            "What becomes of the memory of each call site, with the evidence for it.",
            f"sort_desc(bpfleakd_site_verdict{{{PROCESS}}} "
            "* on (instance, site) group_left (location, stack) bpfleakd_site_info)",
            "verdict",
            "function",
            "kind",
            "location",
            "site",
            "stack",
            link=("site", "Stack and flame graph", to_site),
        ),
        graph(
            "Live bytes, by call site",
            BYTES,
            "The largest call sites and those that leak.",
            (f"topk(15, bpfleakd_site_live_bytes{{{PROCESS}}})", where),
        ),
        graph(
            "Leaks, by call site",
            RATE,
            "What a call site gains for good, if it leaks or may come to.",
            (f"topk(15, bpfleakd_site_leak_bytes_per_second{{{PROCESS}}})", where),
        ),
        graph(
            "Memory, and what is known of it",
            BYTES,
            "Live bytes were allocated since the attach; the rest of the anonymous memory is older, or kept "
            "by the allocator. Memory that was not touched yet is live, but not there.",
            (f"sum(bpfleakd_process_anonymous_bytes{{{PROCESS}}})", "anonymous memory (/proc)"),
            (f"sum(bpfleakd_process_live_bytes{{{PROCESS}}})", "live bytes"),
            (f"sum(bpfleakd_process_peak_live_bytes{{{PROCESS}}})", "most live bytes at once"),
        ),
        graph(
            "Growth",
            RATE,
            "Of the live bytes over the history window, of the memory by its trend, and of what leaks.",
            (f"sum(bpfleakd_process_growth_bytes_per_second{{{PROCESS}}})", "live bytes"),
            (f"sum(bpfleakd_process_memory_growth_bytes_per_second{{{PROCESS}}})", "anonymous memory"),
            (f"sum(bpfleakd_process_leak_bytes_per_second{{{PROCESS}}})", "leaks"),
        ),
        graph(
            "Growth that call sites explain",
            RATIO,
            "The part of the growth of the memory that call sites gain which leak or grow.",
            (f"bpfleakd_process_explained_ratio{{{PROCESS}}}", who),
            span=8,
        ),
        graph(
            "Allocated and freed",
            "ops",
            "Blocks a second.",
            (f"sum(rate(bpfleakd_process_allocations_total{{{PROCESS}}}[$__rate_interval]))", "allocated"),
            (f"sum(rate(bpfleakd_process_frees_total{{{PROCESS}}}[$__rate_interval]))", "freed"),
            (
                f"sum(rate(bpfleakd_process_unmatched_frees_total{{{PROCESS}}}[$__rate_interval]))",
                "freed, from before",
            ),
            span=8,
        ),
        graph(
            "Bytes allocated, by call site",
            RATE,
            "What passes through, whether it stays or not.",
            (f"topk(10, rate(bpfleakd_site_allocated_bytes_total{{{PROCESS}}}[$__rate_interval]))", where),
            span=8,
        ),
        graph(
            "What tracing costs it",
            "short",
            "Processor time in cores.",
            (f"bpfleakd_process_tracing_cores{{{PROCESS}}}", who),
        ),
        graph(
            "Missed",
            "ops",
            "What the figures do not include.",
            (f"sum(rate(bpfleakd_process_losses_total{{{PROCESS}}}[$__rate_interval]))", "missed"),
        ),
        rows(
            "Processes",
            "short",
            "Who is behind the name.",
            f"bpfleakd_process_info{{{PROCESS}}}",
            "instance",
            "comm",
            "unit",
            "container",
            "pod",
            "pid",
            "exe",
            "mode",
            "state",
            link=("pid", "Its page", "${bpfleakd_url}/#/process/${__data.fields.pid}"),
        ),
    ]
    return board(
        "bpfleakd-process",
        "bpfleakd / Process",
        "What a process holds, which call sites gain, and what of its memory is explained.",
        panels,
        label_variable("comm", f"label_values(bpfleakd_process_traced{{{HOST}}}, comm)", many=True),
        label_variable("pid", f"label_values(bpfleakd_process_info{{{PROCESS}}}, pid)", many=False),
        dashboard.TextBoxVariable("bpfleakd_url").label("bpfleakd").default_value("http://127.0.0.1:9797"),
    )


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
            "In cores, all traced programs of a host together, and what it may be.",
            (f"bpfleakd_tracing_cores{{{HOST}}}", "{{instance}} cost"),
            (f'bpfleakd_tracing_budget_cores{{{HOST}, of="host"}}', "{{instance}} budget"),
        ),
        graph(
            "Probes",
            "ops",
            "How often programs run into a probe.",
            (f"sum by (instance) (rate(bpfleakd_process_probe_hits_total{{{HOST}}}[$__rate_interval]))", up),
        ),
        graph(
            "What a probe costs",
            SECONDS,
            "As measured on this machine by the daemon.",
            (f"bpfleakd_probe_cost_seconds{{{HOST}}}", "{{instance}} {{of}}"),
        ),
        graph(
            "Memory of the daemon",
            BYTES,
            "And from when on it lets go of caches and processes.",
            (f"process_resident_memory_bytes{{{HOST}}} and on (instance, job) bpfleakd_build_info", up),
            (f"bpfleakd_memory_limit_bytes{{{HOST}}}", "{{instance}} limit"),
        ),
        graph(
            "Processes, by state",
            "short",
            "What is done with the processes of a host.",
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
            (f"sum by (instance) (rate(bpfleakd_life_events_total{{{HOST}}}[$__rate_interval]))", "events"),
        ),
        graph(
            "Let go of",
            "short",
            "Processes given up or recorded more sparsely, caches shed, metrics that there is no room for.",
            (f"sum(bpfleakd_processes_given_up_total{{{HOST}}})", "given up"),
            (f"sum(bpfleakd_processes_recorded_sparsely_total{{{HOST}}})", "recorded more sparsely"),
            (f"sum(bpfleakd_caches_shed_total{{{HOST}}})", "caches shed"),
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
        ),
    ]
    return board(
        "bpfleakd-daemon",
        "bpfleakd / The daemon",
        "What the daemons do, take, miss and have room for.",
        panels,
    )


def main() -> None:
    """Write all of them."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dashboards"
    for made in (hosts(), process(), daemon()):
        built = made.build()
        for number, panel in enumerate(built.panels, start=1):
            panel.id_val = number
        text = JSONEncoder(sort_keys=True, indent=1, ensure_ascii=False).encode(built)
        (directory / f"{built.uid.removeprefix('bpfleakd-')}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
