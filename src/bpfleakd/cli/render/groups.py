"""The view of `bpfleakctl top --group`: one row per function, module, thread or stack."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.names import short_function, unbounded_function
from bpfleakd.cli.render.report import process_header, why_empty
from bpfleakd.cli.render.stacks import basename, stack_lines
from bpfleakd.cli.render.suppressed import suppressed_lines
from bpfleakd.cli.render.words import loss_lines, readable_function
from bpfleakd.model.groups import GroupedReport, GroupKey, SiteGroup
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_rate

_FIGURE_COLUMNS = (("growth/s", 11), ("live", 8), ("count", 9), ("sites", 6))
_FIGURES_WIDTH = sum(width + 1 for _, width in _FIGURE_COLUMNS)
_SHORTEST_NAME = 20


def groups_view(reports: Sequence[GroupedReport], by: GroupKey, *, width: int | None) -> RenderableType:
    """Return the reports one under the other; `width` as for reports_view."""
    if not reports:
        return Text("no process is traced: bpfleakctl attach PID")
    parts: list[RenderableType] = []
    for report in reports:
        parts += [Text(), process_header(report.process)]
        parts += [Text(line, style="yellow") for line in loss_lines(report.losses)]
        parts += suppressed_lines(report.suppressed, width)
        if not report.groups:
            parts += [] if report.suppressed else [Text(why_empty(report.process))]
            continue
        parts.append(groups_table((), by, width, header=True))
        for group in report.groups:
            parts.append(groups_table((group,), by, width))
            parts += stack_lines(group, width) if by is GroupKey.STACK else []
    return Group(*parts[1:])


def groups_table(
    groups: Sequence[SiteGroup],
    by: GroupKey,
    width: int | None,
    *,
    header: bool = False,
    selected: int | None = None,
) -> Table:
    """Rows with fixed widths, so tables with stacks between them line up."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=header, header_style="bold")
    for name, column_width in _FIGURE_COLUMNS:
        table.add_column(name, justify="right", width=column_width, no_wrap=True)
    table.add_column(by.value, no_wrap=True)
    for place, group in enumerate(groups):
        growth = group.growth_bytes_per_s
        table.add_row(
            "-" if growth is None else Text(human_rate(growth), style="red" if growth > 0 else ""),
            human_bytes(group.live_bytes),
            f"{group.live_count:,}",
            f"{len(group.sites):,}",
            Text(group_name(group, by, width), style="bold"),
            style="reverse" if place == selected else "",
        )
    return table


def group_name(group: SiteGroup, by: GroupKey, width: int | None) -> str:
    """Return a group's name in the room that is left of `width` (None: any)."""
    if group.group is None:
        if by is not GroupKey.THREAD:
            return "[unknown]"
        # The threads' blocks are counted a moment before or after those of the call sites.
        return "[freed while counting]" if group.live_bytes < 0 else "[not by thread]"
    name = readable_function(group.group)
    if by is GroupKey.THREAD:
        name = f"{name} {printable(group.comm or '')}".rstrip()
    if by is GroupKey.MODULE:
        name = basename(name)
    if width is None:
        return unbounded_function(name)
    return short_function(name, max(_SHORTEST_NAME, width - _FIGURES_WIDTH))
