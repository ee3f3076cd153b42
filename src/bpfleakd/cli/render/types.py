"""The view of `bpfleakctl types`: one row per type."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.names import short_function
from bpfleakd.model.runtimes.managed import TypesReport
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration

_TYPES_SHOWN = 50
_FIGURES_WIDTH = 44


def types_view(report: TypesReport, *, width: int | None) -> RenderableType:
    """Return the header and the table; `width` is the terminal's (None: as wide as it gets)."""
    total_bytes = sum(row.live_bytes for row in report.types)
    count = sum(row.live_count for row in report.types)
    since = "" if report.since_s is None else f", changes since {human_duration(report.since_s)} ago"
    garbage = ", garbage included" if report.includes_garbage else ""
    words = f"  {report.runtime} heap: {human_bytes(total_bytes)} in {count:,} objects"
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("live", "change", "count", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("type", no_wrap=True)
    room = None if width is None else max(20, width - _FIGURES_WIDTH)
    for row in report.types[:_TYPES_SHOWN]:
        name = printable(row.type)
        table.add_row(
            human_bytes(row.live_bytes),
            "-" if row.change_bytes is None else _signed(row.change_bytes, human_bytes(row.change_bytes)),
            f"{row.live_count:,}",
            "-" if row.change_count is None else f"{row.change_count:+,}",
            Text(name if room is None else short_function(name, room)),
        )
    who = f"{report.pid} {printable(report.comm)}"
    return Group(
        Text.assemble((who, "bold"), f"{words}, counted in {report.took_s:.2f} s{since}{garbage}"), table
    )


def _signed(number: int, text: str) -> str:
    return f"+{text}" if number > 0 else text
