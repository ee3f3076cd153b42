"""The view of `bpfleakctl types --inspector`: one row per function."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.names import short_function
from bpfleakd.model.runtimes.requested import HeapSample
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_rate

_FUNCTIONS_SHOWN = 50
_FIGURES_WIDTH = 60


def heap_sample_view(sample: HeapSample, *, width: int | None) -> RenderableType:
    """Return the header and the table; `width` is the terminal's (None: as wide as it gets)."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("alive", "growth/s", "samples"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("function", no_wrap=True)
    table.add_column("where", no_wrap=True)
    room = None if width is None else max(20, width - _FIGURES_WIDTH)
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
