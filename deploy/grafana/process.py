"""What one process holds, and why."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from panels import (
    BYTES,
    HOST,
    PROCESS,
    RATE,
    RATIO,
    SECONDS,
    Panel,
    board,
    figure,
    graph,
    label_variable,
    rows,
)

_TO_SITE = "${bpfleakd_url}/#/process/${pid}/site/${__data.fields.site}"
_WHO = "{{comm}} {{unit}} {{pid}}"
_WHERE = "{{function}} {{site}}"


def process() -> dashboard.Dashboard:
    """What one process holds, and why."""
    panels = [*_figures(), *_call_sites(), *_memory(), *_tracing()]
    return board(
        "bpfleakd-process",
        "bpfleakd / Process",
        "Memory of a process, verdicts on its call sites, and the explained share of its growth.",
        panels,
        label_variable("comm", f"label_values(bpfleakd_process_traced{{{HOST}}}, comm)", many=True),
        label_variable("pid", f"label_values(bpfleakd_process_info{{{PROCESS}}}, pid)", many=False),
        dashboard.TextBoxVariable("bpfleakd_url").label("bpfleakd").default_value("http://127.0.0.1:9797"),
    )


def _figures() -> list[Panel]:
    """The row of figures at the top."""
    return [
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
            "Growth of the call sites that leak.",
        ),
        figure(
            "Live",
            f"sum(bpfleakd_process_live_bytes{{{PROCESS}}})",
            BYTES,
            "Allocated since the attach, not freed yet.",
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
            "The room left below that limit.",
        ),
        figure(
            "Threads",
            f"sum(bpfleakd_process_threads{{{PROCESS}}})",
            "short",
            "Threads of all that are summed.",
        ),
    ]


def _call_sites() -> list[Panel]:
    """Verdicts on call sites, and their memory."""
    return [
        rows(
            "Verdicts",
            RATE,
            "The verdict on each call site; the fastest leak first.",
            f"sort_desc((0 * bpfleakd_site_verdict{{{PROCESS}}} + ignoring (verdict) group_left () "
            f"bpfleakd_site_leak_bytes_per_second{{{PROCESS}}} or 0 * bpfleakd_site_verdict{{{PROCESS}}}) "
            "* on (instance, site) group_left (called_by, location, stack) bpfleakd_site_info)",
            "verdict",
            "called_by",
            "function",
            "kind",
            "location",
            "site",
            "stack",
            value="growth",
            link=("site", "Stack and flame graph", _TO_SITE),
        ),
        graph(
            "Live bytes, by call site",
            BYTES,
            "The largest call sites and those that leak.",
            (f"topk(15, bpfleakd_site_live_bytes{{{PROCESS}}})", _WHERE),
        ),
        graph(
            "Leaks, by call site",
            RATE,
            "Growth of the call sites that leak, or may leak.",
            (f"topk(15, bpfleakd_site_leak_bytes_per_second{{{PROCESS}}})", _WHERE),
        ),
    ]


def _memory() -> list[Panel]:
    """The memory of the process, and what call sites explain of it."""
    return [
        graph(
            "Memory, and its recorded part",
            BYTES,
            "Live bytes were allocated since the attach. The rest of the anonymous memory is older, or kept "
            "by the allocator. Memory that was not touched yet is live, but not resident.",
            (f"sum(bpfleakd_process_anonymous_bytes{{{PROCESS}}})", "anonymous memory (/proc)"),
            (f"sum(bpfleakd_process_live_bytes{{{PROCESS}}})", "live bytes"),
            (f"sum(bpfleakd_process_peak_live_bytes{{{PROCESS}}})", "most live bytes at once"),
        ),
        graph(
            "Growth",
            RATE,
            "Growth of live bytes (over the history window), of memory (its trend), and of the leaks.",
            (f"sum(bpfleakd_process_growth_bytes_per_second{{{PROCESS}}})", "live bytes"),
            (f"sum(bpfleakd_process_memory_growth_bytes_per_second{{{PROCESS}}})", "anonymous memory"),
            (f"sum(bpfleakd_process_leak_bytes_per_second{{{PROCESS}}})", "leaks"),
        ),
        graph(
            "Growth that call sites explain",
            RATIO,
            "The share of the memory's growth that is in call sites that leak or grow.",
            (f"bpfleakd_process_explained_ratio{{{PROCESS}}}", _WHO),
            span=8,
        ),
    ]


def _tracing() -> list[Panel]:
    """Allocations, the cost of tracing, losses, and the processes."""
    return [
        graph(
            "Allocated and freed",
            "ops",
            "Blocks per second.",
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
            "All allocated bytes, freed ones included.",
            (f"topk(10, rate(bpfleakd_site_allocated_bytes_total{{{PROCESS}}}[$__rate_interval]))", _WHERE),
            span=8,
        ),
        graph(
            "Cost of tracing, in cores",
            "short",
            "Processor time of the probes.",
            (f"bpfleakd_process_tracing_cores{{{PROCESS}}}", _WHO),
        ),
        graph(
            "Missed",
            "ops",
            "Losses: what could not be recorded.",
            (f"sum(rate(bpfleakd_process_losses_total{{{PROCESS}}}[$__rate_interval]))", "missed"),
        ),
        rows(
            "Processes",
            "short",
            "The processes of this name.",
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
            value="processes",
            link=("pid", "Its page", "${bpfleakd_url}/#/process/${__data.fields.pid}"),
        ),
    ]
