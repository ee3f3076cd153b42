"""The table of watched processes under `bpfleakctl ps --all`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.model.watching import WatchedProcess, WatchState
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration, human_rate

__all__ = ["watched_view"]


def watched_view(watched: Sequence[WatchedProcess]) -> RenderableType:
    """Return a row a process; under the table, why some cannot be traced."""
    if not watched:
        return Text("no process is watched")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("watched", justify="right", no_wrap=True)
    table.add_column("comm", no_wrap=True, max_width=16)
    for name in ("anonymous", "growth/s", "windows", "next look"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for process in watched:
        table.add_row(
            str(process.pid),
            Text(printable(process.comm), overflow="ellipsis"),
            human_bytes(process.anonymous_bytes),
            human_rate(process.growth_bytes_per_s),
            f"{process.windows:,}",
            "" if process.next_look_s is None else f"in {human_duration(process.next_look_s)}",
            Text(process.mode.value),
            Text(process.state.value, style="" if process.state == WatchState.WATCHED else "yellow"),
        )
    reasons = [
        Text(f"{process.pid} not attached: {printable(process.reason)}", style="yellow")
        for process in watched
        if process.reason
    ]
    return Group(table, *reasons)
