"""Tables of processes: of `bpfleakctl ps`, of those watched (`ps --all`) and of `bpfleakctl policy`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.sites import VERDICT_STYLES
from bpfleakd.cli.render.words import is_estimate, loss_lines, recorded_share
from bpfleakd.model.process import ProcessLabels, ProcessRow, ProcessState
from bpfleakd.model.supervision import SupervisedProcess, SupervisionState
from bpfleakd.model.verdict import Verdict
from bpfleakd.model.watching import WatchedProcess, WatchState
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration, human_percent, human_rate

__all__ = ["processes_table", "processes_view", "supervised_view", "watched_view"]

# What is less is not worth a line.
_DEAR_PERCENT = 1.0
_COLUMNS = (
    "pid",
    "comm",
    "verdict",
    "live",
    "growth/s",
    "count",
    "sites",
    "for",
    "mode",
    "recorded",
    "state",
)
# From how many columns on a screen has room for these.
_ROOM_FOR = {"count": 86, "sites": 78, "mode": 72, "recorded": 86}


def processes_view(processes: Sequence[ProcessRow], *, width: int | None = None) -> RenderableType:
    """Return a row a process; under the table, what was missed, what costs much, and what is limited.

    `width` is the terminal's (None: as wide as it gets).
    """
    if not processes:
        return Text("no process is traced: bpfleakctl attach PID")
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
    aside = [
        Text(f"{row.process.pid} is set aside after an error: {printable(row.set_aside)}", style="yellow")
        for row in processes
        if row.set_aside
    ]
    costs = map(_cost, filter(_is_dear, processes))
    return Group(processes_table(processes, width=width), *missed, *gaps, *aside, *costs)


def processes_table(
    processes: Sequence[ProcessRow], *, width: int | None = None, selected: int | None = None
) -> Table:
    """Return a row a process; without the columns that a screen of `width` has no room for."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    names = [name for name in _COLUMNS if width is None or width >= _ROOM_FOR.get(name, 0)]
    if not any(is_estimate(traced.process) for traced in processes):
        names = [name for name in names if name != "recorded"]
    for name in names:
        is_text = name in ("comm", "verdict", "mode", "recorded", "state")
        table.add_column(
            name,
            justify="left" if is_text else "right",
            no_wrap=True,
            max_width=16 if name == "comm" else None,
        )
    for place, traced in enumerate(processes):
        process = traced.process
        cells: dict[str, Text | str] = {
            "pid": str(process.pid),
            "comm": Text(printable(process.comm), overflow="ellipsis"),
            "verdict": _verdict(traced),
            "live": human_bytes(process.live_bytes),
            "growth/s": human_rate(process.growth_bytes_per_s),
            "count": f"{process.live_count:,}",
            "sites": f"{traced.sites:,}",
            "for": human_duration(process.attached_s),
            "mode": Text(printable(process.mode)),
            "recorded": recorded_share(process) if "recorded" in names else "",
            "state": Text(
                process.state.value, style="" if process.state == ProcessState.TRACED else "yellow"
            ),
        }
        table.add_row(*(cells[name] for name in names), style="reverse" if place == selected else "")
    return table


def _verdict(traced: ProcessRow) -> Text:
    verdict = traced.process_verdict.verdict if traced.process_verdict else Verdict.UNKNOWN
    return Text(verdict, VERDICT_STYLES.get(verdict, ""))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _is_dear(traced: ProcessRow) -> bool:
    return bool(traced.limited) or traced.load_percent >= _DEAR_PERCENT


def _cost(traced: ProcessRow) -> Text:
    now = f"tracing costs it {human_percent(traced.load_percent) or 'nothing'} of a core"
    words = f"{now}; limited: {printable(traced.limited)}" if traced.limited else now
    return Text(f"{traced.process.pid} {words}", style="yellow")


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


_CONTAINER_CHARS = 12  # as much of an id as docker and podman show
_STYLES = {
    SupervisionState.TRACED: "bold",
    SupervisionState.WAITING: "yellow",
    SupervisionState.REFUSED: "yellow",
}


def supervised_view(processes: Sequence[SupervisedProcess]) -> RenderableType:
    """Return a row a process, by pid."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("pid", justify="right", no_wrap=True)
    table.add_column("comm", no_wrap=True, max_width=16)
    for name in ("mode", "by", "state"):
        table.add_column(name, no_wrap=True)
    table.add_column("belongs to", max_width=40, no_wrap=True)
    table.add_column("because", overflow="fold")
    for process in processes:
        table.add_row(
            str(process.pid),
            Text(printable(process.comm), overflow="ellipsis"),
            process.mode.value,
            Text(printable(process.rule)),
            Text(process.state.value, style=_STYLES.get(process.state, "")),
            Text(_home(process.labels), overflow="ellipsis"),
            Text(printable(process.reason)),
        )
    return table


def _home(labels: ProcessLabels) -> str:
    if labels.container is not None:
        return f"container {printable(labels.container[:_CONTAINER_CHARS])}"
    return printable(labels.unit or labels.user or "")
