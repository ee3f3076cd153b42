"""The table of `bpfleakctl ps`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.estimates import is_estimate, recorded_share
from bpfleakd.cli.render.losses import loss_lines
from bpfleakd.model import ProcessState, TracedProcess
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration, human_percent, human_rate

__all__ = ["processes_view"]


# What is less is not worth a line.
_DEAR_PERCENT = 1.0


def processes_view(processes: Sequence[TracedProcess]) -> RenderableType:
    """Return a row a process; under the table, what was missed, what costs much, and what is limited."""
    if not processes:
        return Text("no process is traced: bpfleakctl attach PID")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("comm", no_wrap=True, max_width=16)
    for name in ("live", "growth/s", "count", "sites", "for"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    any_estimate = any(is_estimate(traced.process) for traced in processes)
    if any_estimate:
        table.add_column("recorded", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for traced in processes:
        process = traced.process
        table.add_row(
            str(process.pid),
            Text(printable(process.comm), overflow="ellipsis"),
            human_bytes(process.live_bytes),
            human_rate(process.growth_bytes_per_s),
            f"{process.live_count:,}",
            f"{traced.sites:,}",
            human_duration(process.attached_s),
            Text(printable(process.mode)),
            *([recorded_share(process)] if any_estimate else []),
            Text(process.state.value, style="" if process.state == ProcessState.TRACED else "yellow"),
        )
    missed = [
        Text(f"{traced.process.pid} {line}", style="yellow")
        for traced in processes
        for line in loss_lines(traced.losses)
    ]
    gaps = [
        Text(
            f"{row.process.pid} taken over {_times(row.adopted_count)}: "
            f"{human_duration(row.gap_s)} without a daemon",
            style="dim",
        )
        for row in processes
        if row.adopted_count
    ]
    return Group(table, *missed, *gaps, *map(_cost, filter(_is_dear, processes)))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _is_dear(traced: TracedProcess) -> bool:
    return bool(traced.limited) or traced.load_percent >= _DEAR_PERCENT


def _cost(traced: TracedProcess) -> Text:
    now = f"tracing costs it {human_percent(traced.load_percent) or 'nothing'} of a core"
    words = f"{now}; limited: {printable(traced.limited)}" if traced.limited else now
    return Text(f"{traced.process.pid} {words}", style="yellow")
