"""The view of `bpfleakctl diff`: one row per changed call site, with stacks under the first few."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.names import short_function, unbounded_function
from bpfleakd.cli.render.stacks import basename, stack_lines
from bpfleakd.cli.render.words import readable_function
from bpfleakd.model.difference import ComparedState, DiffReport, SiteChange, SiteDifference
from bpfleakd.printable import printable, shortened
from bpfleakd.units import human_bytes, human_duration

_FIGURES = (("change", 6), ("bytes", 9), ("live", 8), ("count", 9))
_FIGURES_WIDTH = sum(width + 1 for _, width in _FIGURES)
_STYLES = {SiteChange.NEW: "bold red", SiteChange.GROWN: "red"}


def diff_view(report: DiffReport, *, width: int | None, limit: int | None, stacks: int) -> RenderableType:
    """Return the first `limit` sites; `width` is the terminal's (None: as wide as it gets)."""
    shown = report.sites[:limit]
    parts: list[RenderableType] = []
    for when, state in (("before", report.before), ("after", report.after)):
        parts.append(_header(when, state))
        if state.resolution_s > 0:
            words = f"the least of each call site within {human_duration(math.ceil(state.resolution_s))}"
            parts.append(Text(f"{when}: {words}, at the resolution of the history", "dim"))
    for when, state in (("before", report.before), ("after", report.after)):
        if state.left_out_bytes > 0:
            words = f"{when}: {human_bytes(state.left_out_bytes)} in omitted call sites"
            parts.append(Text(f"{words} (--limit 0, suppressed)", "yellow"))
    if report.built_anew:
        files = ", ".join(printable(name) for name in report.built_anew)
        words = f"matched by function name, because these files were rebuilt: {files}"
        parts.append(Text(words, "dim"))
    parts.append(Text(_summary(report)))
    if shown:
        parts.append(_table(shown[:0], width, header=True))
    for site in shown[:stacks]:
        parts += [_table([site], width), *stack_lines(site, width)]
    if shown[stacks:]:
        parts.append(_table(shown[stacks:], width))
    if len(shown) < len(report.sites):
        parts.append(Text(f"… {len(report.sites) - len(shown):,} more call sites (--limit)", "dim"))
    if report.left_out_sites:
        words = f"… {report.left_out_sites:,} call sites that changed less or are suppressed"
        parts.append(Text(words, "dim"))
    return Group(*parts)


def _header(when: str, state: ComparedState) -> Text:
    live = f"live {human_bytes(state.live_bytes)} in {state.live_count:,} blocks"
    since = f"attached {human_duration(state.attached_s)}"
    who = f"{state.pid} {printable(state.comm)}"
    parts = [printable(state.source), live, since, printable(state.mode)]
    return Text.assemble(f"{when:<6}  ", (who, "bold"), "  ", "  ".join(parts))


def _summary(report: DiffReport) -> str:
    counts = [
        f"{sum(site.change == change for site in report.sites):,} {change.value}" for change in SiteChange
    ]
    return f"call sites: {', '.join(counts)}, {report.unchanged_count:,} unchanged"


def _table(sites: Sequence[SiteDifference], width: int | None, *, header: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=header, header_style="bold")
    for index, (name, column_width) in enumerate(_FIGURES):
        table.add_column(name, justify="right" if index else "left", width=column_width, no_wrap=True)
    table.add_column("function", no_wrap=True)
    for site in sites:
        table.add_row(*_cells(site, width))
    return table


def _cells(site: SiteDifference, width: int | None) -> Iterable[RenderableType]:
    gained = site.after_bytes - site.before_bytes
    count = site.after_count - site.before_count
    yield Text(site.change.value, _STYLES.get(site.change, ""))
    yield f"{'+' if gained > 0 else ''}{human_bytes(gained)}"
    yield human_bytes(site.after_bytes)
    yield f"{count:+,}"
    name = readable_function(site.function) if site.function else "[unknown]"
    where = printable(site.location or basename(site.module or "-"))
    if width is None:
        name = unbounded_function(name)
    else:
        room = max(24, width - _FIGURES_WIDTH - 1)
        name = short_function(name, max(12, room - min(cell_len(where), room // 2)))
        where = shortened(where, max(8, room - cell_len(name)), keep_end=True)
    yield Text.assemble((name, "bold"), f" {where}")
