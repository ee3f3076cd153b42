"""The bill of a container in `bpfleakctl maps`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.model.container import ContainerBill, ContainerLine
from bpfleakd.printable import printable, shortened
from bpfleakd.units import human_bytes, human_rate

_PATH_CHARS = 60


def container_view(bill: ContainerBill) -> list[RenderableType]:
    """The used part of the limit, the growth, and one row per kind."""
    share = bill.used_bytes / bill.limit_bytes if bill.limit_bytes else 1.0
    used = f"{human_bytes(bill.used_bytes)} of {human_bytes(bill.limit_bytes)} used ({share:.0%})"
    name = shortened(printable(bill.cgroup), _PATH_CHARS, keep_end=True)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for column in ("memory", "growth", "process"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(f"kind in control group {name}")
    for line in bill.lines:
        own = "-" if line.process_bytes is None else human_bytes(line.process_bytes)
        table.add_row(human_bytes(line.bytes), _growth(line), own, Text(line.kind.value, style="bold"))
    summary = [Text(bill.growth_summary, "bold")] if bill.growth_summary else []
    return [Text(f"container: {used}"), *summary, table]


def _growth(line: ContainerLine) -> Text:
    growth = line.growth_bytes_per_s
    return Text("-") if not growth else Text(human_rate(growth), style="red" if growth > 0 else "")
