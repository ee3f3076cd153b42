"""Who leaks, on all hosts."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from panels import BYTES, HOST, RATE, SECONDS, Panel, board, figure, graph, rows

_TO_PROCESS = "/d/bpfleakd-process?var-instance=${__data.fields.instance}&var-comm=${__data.fields.comm}"


def hosts() -> dashboard.Dashboard:
    """Who leaks."""
    panels = [*_figures(), *_leaks(), *_all_hosts()]
    return board(
        "bpfleakd-hosts", "bpfleakd / Who leaks", "Which processes and call sites leak, on all hosts.", panels
    )


def _figures() -> list[Panel]:
    """The row of figures at the top."""
    return [
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
            "Growth of all call sites that leak.",
        ),
        figure(
            "Live",
            f"sum(bpfleakd_process_live_bytes{{{HOST}}})",
            BYTES,
            "Allocated since the attach, not freed yet.",
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
            "Losses: what could not be recorded, for any reason.",
        ),
    ]


def _leaks() -> list[Panel]:
    """What leaks, and when a limit is reached."""
    return [
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
            value="growth",
            link=("comm", "The process", _TO_PROCESS),
        ),
        graph(
            "Leaks, by process",
            RATE,
            "Growth of the call sites that leak, by process.",
            (
                f"topk(10, bpfleakd_process_leak_bytes_per_second{{{HOST}}})",
                "{{instance}} {{comm}} {{unit}} {{pid}}",
            ),
        ),
        graph(
            "Live bytes, by process",
            BYTES,
            "Allocated since the attach, not freed yet.",
            (f"topk(10, bpfleakd_process_live_bytes{{{HOST}}})", "{{instance}} {{comm}} {{unit}} {{pid}}"),
        ),
        graph(
            "Time until a limit is reached",
            SECONDS,
            "For the limit with the least room, at the present growth.",
            (
                f"bottomk(10, bpfleakd_process_limit_reached_seconds{{{HOST}}})",
                "{{instance}} {{comm}} {{unit}} {{pid}}",
            ),
        ),
    ]


def _all_hosts() -> list[Panel]:
    """Watched processes, and leaks on several hosts."""
    return [
        graph(
            "Watched processes",
            "short",
            "Processes whose memory is read from /proc, those that grow, those traced for a minute.",
            (f"sum(bpfleakd_watched_processes{{{HOST}}})", "watched"),
            (f"sum(bpfleakd_growing_processes{{{HOST}}})", "growing"),
            (f"sum(bpfleakd_windows_open{{{HOST}}})", "traced for a minute"),
        ),
        rows(
            "The same leak on several hosts",
            "short",
            "The number of hosts on which a call site has the verdict leak.",
            "topk(20, count by (function, site) "
            f'(count by (instance, function, site) (bpfleakd_site_verdict{{{HOST}, verdict="leak"}})))',
            "function",
            "site",
            value="hosts",
        ),
    ]
