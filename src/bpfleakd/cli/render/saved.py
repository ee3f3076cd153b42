"""Saved data: the reports that the daemon stores, and a history with new verdicts."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.words import fitted, readable_function, verdict_lines
from bpfleakd.model.history import StoredHistory, StoredSite
from bpfleakd.model.report import StoredReportEntry
from bpfleakd.model.verdict import ProcessVerdict, SiteVerdict
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration, human_rate


def analyzed_view(
    history: StoredHistory,
    process: ProcessVerdict,
    sites: Sequence[tuple[StoredSite, SiteVerdict]],
    *,
    width: int | None,
) -> RenderableType:
    """Return the lines, cut to `width` (None: as wide as it gets)."""
    observed = human_duration(history.ends_s[-1] if history.ends_s else 0.0)
    lines = [f"{printable(history.comm)}  observed for {observed}", *verdict_lines(process)]
    lines.append(f"{'verdict':8}{'leaks':>11} {'live':>8} function")
    for site, verdict in sites:
        rate = human_rate(verdict.leak_bytes_per_s) if verdict.leak_bytes_per_s else "-"
        name = readable_function(site.function) if site.function else "[unknown]"
        lines.append(f"{verdict.verdict:8}{rate:>11} {human_bytes(site.live_bytes):>8} {name}")
        lines.append(f"  {verdict.confidence:.0%} sure: {printable(verdict.reason)}")
    return Group(*(Text(fitted(line, width)) for line in lines))


def kept_reports_view(reports: Sequence[StoredReportEntry]) -> RenderableType:
    """One row per report, in local time."""
    if not reports:
        return Text("no reports: the daemon stores one when a process exits or is detached (state.dir)")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("id", justify="right", no_wrap=True)
    table.add_column("kept", no_wrap=True)
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("comm", no_wrap=True, max_width=16)
    for name in ("live", "growth/s", "count", "sites"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for report in reports:
        table.add_row(
            str(report.id),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(report.kept_s)),
            str(report.pid),
            Text(printable(report.comm), overflow="ellipsis"),
            human_bytes(report.live_bytes),
            human_rate(report.growth_bytes_per_s),
            f"{report.live_count:,}",
            f"{report.sites:,}",
            Text(printable(report.state)),
        )
    return table
