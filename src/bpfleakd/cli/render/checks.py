"""The table of `bpfleakctl doctor`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.model.daemon import Check, CheckStatus
from bpfleakd.printable import printable

_STYLES = {CheckStatus.OK: "green", CheckStatus.WARN: "yellow", CheckStatus.FAIL: "bold red"}


def checks_view(checks: Sequence[Check]) -> RenderableType:
    """One row per check: status, name, detail, and below the detail how to fix it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        detail = Text(printable(check.detail))
        if check.way_out:
            detail.append("\n→ " + printable(check.way_out), style="bold")
        table.add_row(
            Text(check.status.value, style=_STYLES[check.status]), Text(printable(check.name)), detail
        )
    return table
