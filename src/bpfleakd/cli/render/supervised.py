"""The table of `bpfleakctl policy`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.model.process import ProcessLabels
from bpfleakd.model.supervision import SupervisedProcess, SupervisionState
from bpfleakd.printable import printable

__all__ = ["supervised_view"]

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
