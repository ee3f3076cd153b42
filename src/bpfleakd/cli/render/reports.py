"""The table of `bpfleakctl reports`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.model.stored_report import StoredReportEntry
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_rate

__all__ = ["kept_reports_view"]


def kept_reports_view(reports: Sequence[StoredReportEntry]) -> RenderableType:
    """Return a row a report, in local time."""
    if not reports:
        return Text("no report is kept: one is when a process ends or is detached (state.dir)")
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
