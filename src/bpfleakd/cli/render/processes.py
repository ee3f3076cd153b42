"""Tables of processes: of `bpfleakctl ps`, of those watched (`ps --all`) and of `bpfleakctl policy`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.sites import VERDICT_STYLES
from bpfleakd.cli.render.words import is_estimate, loss_lines, recorded_share
from bpfleakd.model.process import ProcessLabels, ProcessRow, ProcessState
from bpfleakd.model.supervision import SupervisedProcess, SupervisionState
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.model.watching import WatchedProcess, WatchState
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration, human_percent, human_rate

# A lower cost is not worth a line.
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
_WIDE_COLUMNS = (*_COLUMNS, "peak", "rule", "belongs to", "executable")
_TEXTS = {"comm", "verdict", "mode", "recorded", "state", "rule", "belongs to", "executable"}
# On a screen columns keep their place, whatever the rows have: "1023 KiB", "-99.9 MiB/s", "23h59m".
_WIDTHS = {"pid": 7, "comm": 15, "verdict": 7, "live": 8, "growth/s": 11, "count": 9, "sites": 5, "for": 6}
# From how many columns on a screen has room for these.
_ROOM_FOR = {"live": 52, "for": 60, "state": 67, "mode": 72, "sites": 78, "count": 86, "recorded": 86}
# On a narrower one names are cut, so that the verdict is not.
_ROOM_FOR_NAMES, _CUT_NAMES = 44, 8

_RANKS = {
    Verdict.LEAK: 0,
    Verdict.GROWING: 1,
    Verdict.UNKNOWN: 2,
    Verdict.PLATEAU: 3,
    Verdict.STEADY: 4,
    Verdict.CHURN: 5,
}


def by_severity(processes: Iterable[ProcessRow]) -> list[ProcessRow]:
    """Leaks first, then growing processes, then the others; each sorted by rate, then by size."""
    return sorted(processes, key=lambda row: (*severity(row.process_verdict), -row.process.live_bytes))


def severity(verdict: ProcessVerdict | None) -> tuple[int, float]:
    """The sort key of processes, the worst least."""
    if verdict is None:
        return _RANKS[Verdict.UNKNOWN], 0.0
    return _RANKS[verdict.verdict], -verdict.leak_bytes_per_s


def processes_view(
    processes: Sequence[ProcessRow], *, width: int | None = None, wide: bool = False, headers: bool = True
) -> RenderableType:
    """Return a row a process; under the table, what was missed, what costs much, and what is limited.

    `width` is the terminal's (None: as wide as it gets); `wide` adds columns.
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
            f"{row.process.pid} adopted {_times(row.adopted_count)}: "
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
    notes = [Text(f"{row.process.pid} {printable(note)}") for row in processes for note in row.process.notes]
    costs = map(_cost, filter(_is_dear, processes))
    table = processes_table(processes, width=width, wide=wide, headers=headers)
    return Group(table, *missed, *gaps, *aside, *notes, *costs)


def processes_table(
    processes: Sequence[ProcessRow],
    *,
    width: int | None = None,
    selected: int | None = None,
    wide: bool = False,
    headers: bool = True,
    watched: Sequence[WatchedProcess] = (),
) -> Table:
    """Return a row a process, then one for each that is only watched.

    Columns are left out that a screen of `width` has no room for. With `selected`, the chosen row of a
    screen, columns have fixed widths.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_header=headers)
    on_screen = selected is not None
    may_estimate = on_screen or any(is_estimate(traced.process) for traced in processes)
    names = [
        name
        for name in (_WIDE_COLUMNS if wide else _COLUMNS)
        if (width is None or width >= _ROOM_FOR.get(name, 0)) and (name != "recorded" or may_estimate)
    ]
    are_cut = width is not None and width < _ROOM_FOR_NAMES
    widths = {**_WIDTHS, "comm": _CUT_NAMES} if are_cut else _WIDTHS
    for name in names:
        table.add_column(
            name,
            justify="left" if name in _TEXTS else "right",
            no_wrap=True,
            width=widths.get(name) if on_screen else None,
            max_width=(_CUT_NAMES if are_cut else 16) if name == "comm" else None,
        )
    for place, traced in enumerate(processes):
        cells = _traced_cells(traced)
        table.add_row(*(cells[name] for name in names), style="reverse" if place == selected else "")
    for place, each in enumerate(watched, len(processes)):
        known = _watched_cells(each)
        row = (known.get(name, "-") for name in names)
        table.add_row(*row, style="reverse" if place == selected else "dim")
    return table


def _traced_cells(traced: ProcessRow) -> dict[str, Text | str]:
    """All columns of a traced process."""
    process = traced.process
    return {
        "pid": str(process.pid),
        "comm": Text(printable(process.comm), overflow="ellipsis"),
        "verdict": _verdict(traced),
        "live": human_bytes(process.live_bytes),
        "growth/s": "-" if process.growth_bytes_per_s is None else human_rate(process.growth_bytes_per_s),
        "count": f"{process.live_count:,}",
        "sites": f"{traced.sites:,}",
        "for": human_duration(process.attached_s),
        "mode": Text(printable(process.mode)),
        "recorded": recorded_share(process),
        "state": Text(process.state.value, style="" if process.state == ProcessState.TRACED else "yellow"),
        "peak": human_bytes(process.peak_live_bytes),
        "rule": printable(traced.request.rule or ""),
        "belongs to": _home(process.labels),
        "executable": printable(process.exe),
    }


def _watched_cells(watched: WatchedProcess) -> dict[str, Text | str]:
    """The columns that a watched process has."""
    return {
        "pid": str(watched.pid),
        "comm": Text(printable(watched.comm), overflow="ellipsis"),
        "growth/s": human_rate(watched.growth_bytes_per_s),
        "mode": Text(watched.mode.value),
        "state": Text(watched.state.value, style="" if watched.state == WatchState.WATCHED else "yellow"),
    }


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


def watched_view(watched: Sequence[WatchedProcess], *, headers: bool = True) -> RenderableType:
    """Return a row a process; under the table, why some cannot be traced, and whose descriptors grow."""
    if not watched:
        return Text("no process is watched")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_header=headers)
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
    reasons += [
        Text(f"{process.pid} {printable(process.descriptors_reason)}", style="yellow")
        for process in watched
        if process.descriptors_reason
    ]
    return Group(table, *reasons)


def missed_view(missed: Mapping[str, int]) -> Text:
    """Return how many processes ended that were to be traced and never were, by rule."""
    rules = ", ".join(f"{count:,} by {printable(rule)}" for rule, count in sorted(missed.items()))
    return Text(f"ended without having been traced although the policy says so: {rules}", style="yellow")


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
