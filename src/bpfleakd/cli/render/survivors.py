"""The view of `bpfleakctl types --who`: one row per type and allocating stack, and what refers to them."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.names import short_function
from bpfleakd.model.runtimes.survivors import Survivor, SurvivorsReport
from bpfleakd.printable import printable

_ROWS_SHOWN = 30
_FEW = 10
_STEPS_SHOWN = 6


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
        return "nothing that was found: it is garbage, or the search was given up"
    steps = [printable(step) for step in one.held_by]
    left_out = len(steps) - _STEPS_SHOWN
    if left_out > 0:
        steps = [*steps[: _STEPS_SHOWN // 2], "…", *steps[-_STEPS_SHOWN // 2 :]]
    return " → ".join(steps)
