"""The views of `bpfleakctl types`: a row per type, surviving object (--who) or function (--inspector)."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.names import short_function
from bpfleakd.model.runtimes.managed import TypesReport
from bpfleakd.model.runtimes.requested import HeapSample
from bpfleakd.model.runtimes.survivors import Survivor, SurvivorsReport
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration, human_rate

_TYPES_SHOWN = 50
_FIGURES_WIDTH = 44

_ROWS_SHOWN = 30
_FEW = 10
_STEPS_SHOWN = 6

_FUNCTIONS_SHOWN = 50
_SAMPLE_FIGURES_WIDTH = 60


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


def survivors_view(report: SurvivorsReport, *, width: int | None) -> RenderableType:
    """Return the header and the table; `width` is the terminal's (None: as wide as it gets)."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("share", "samples"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("type", "allocated by"):
        table.add_column(name, no_wrap=True)
    room = None if width is None else max(20, (width - 20) // 2)
    for one in report.survivors[:_ROWS_SHOWN]:
        where = _shortened(one.function or "?", room) + (f":{one.line}" if one.line else "")
        table.add_row(
            f"{100 * one.share:.0f}%", f"{one.samples:,}", Text(_shortened(one.type, room)), Text(where)
        )
        table.add_row("", "", Text(f"  held by {_path(one)}", "dim"), "")
    words = (
        f"  {report.runtime} heap: {report.samples:,} samples alive, "
        f"of what was allocated in {report.sampled_s:.1f} s"
    )
    lines: list[RenderableType] = [
        Text.assemble((f"{report.pid} {printable(report.comm)}", "bold"), words),
        table,
    ]
    if report.samples < _FEW:
        lines.append(Text("too few samples for a conclusion; sample for longer (--for 2m)", "dim"))
    return Group(*lines)


def _shortened(name: str, room: int | None) -> str:
    name = printable(name)
    return name if room is None else short_function(name, room)


def _path(one: Survivor) -> str:
    if not one.held_by:
        return "nothing found: it is garbage, or the search was stopped"
    steps = [printable(step) for step in one.held_by]
    left_out = len(steps) - _STEPS_SHOWN
    if left_out > 0:
        steps = [*steps[: _STEPS_SHOWN // 2], "…", *steps[-_STEPS_SHOWN // 2 :]]
    return " → ".join(steps)


def heap_sample_view(sample: HeapSample, *, width: int | None) -> RenderableType:
    """Return the header and the table; `width` is the terminal's (None: as wide as it gets)."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("alive", "growth/s", "samples"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("function", no_wrap=True)
    table.add_column("where", no_wrap=True)
    room = None if width is None else max(20, width - _SAMPLE_FIGURES_WIDTH)
    for one in sample.functions[:_FUNCTIONS_SHOWN]:
        name = printable(one.function)
        table.add_row(
            human_bytes(one.live_bytes),
            "-" if sample.is_others else human_rate(one.live_bytes / max(sample.sampled_s, 0.001)),
            f"{one.samples:,}",
            Text(name if room is None else short_function(name, room)),
            printable(one.location or "-"),
        )
    who = f"{sample.pid} {printable(sample.comm)}"
    since = f"of what was allocated in {sample.sampled_s:.1f} s"
    if sample.is_others:
        since = "by samples that the program itself takes"
    words = f"  {sample.runtime} heap: {human_bytes(sample.live_bytes)} alive after a collection, {since}"
    lines: list[RenderableType] = [Text.assemble((who, "bold"), words), table]
    if not sample.was_open and not sample.is_left_open:
        lines.append(Text(f"its inspector at {sample.address} is closed again", "dim"))
    return Group(*lines)
