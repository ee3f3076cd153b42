"""The view of `bpfleakctl top`: a header a process, a row a call site, why it is called so, and stacks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.estimates import estimated_amount, estimated_count, is_estimate, mode_words
from bpfleakd.cli.render.losses import loss_lines
from bpfleakd.cli.render.names import readable_function
from bpfleakd.cli.render.process_verdict import verdict_lines
from bpfleakd.cli.render.stacks import basename, stack_lines
from bpfleakd.cli.render.suppressed import suppressed_lines
from bpfleakd.model import LeakReport, ProcessState, ProcessSummary, SiteReport, Verdict
from bpfleakd.printable import printable, shortened
from bpfleakd.units import human_bytes, human_duration, human_rate

__all__ = ["process_header", "reports_view", "why_empty"]

# What the figures need: "-99.9 MiB/s", "1023 KiB", "4,000,000", "23h59m".
_VERDICT = ("verdict", 7)
_FIGURE_COLUMNS = (("growth/s", 11), ("live", 8), ("count", 9), ("oldest", 7))
_ESTIMATE_COLUMNS = (("growth/s", 11), ("live", 8), ("±", 8), ("count", 9), ("±", 8), ("oldest", 7))
_STYLES = {Verdict.LEAK: "bold red", Verdict.GROWING: "yellow"}


def reports_view(
    reports: Sequence[LeakReport], *, width: int | None, stacks: int, max_frames: int | None
) -> RenderableType:
    """Return the reports one under the other.

    `width` is the terminal's (None: as wide as it gets), `stacks` the number of call sites a process
    whose stacks are shown, `max_frames` how much of each (None: all).
    """
    if not reports:
        return Text("no process is traced: bpfleakctl attach PID")
    parts: list[RenderableType] = []
    for report in reports:
        parts += [Text(), *_report_parts(report, width, stacks, max_frames)]
    return Group(*parts[1:])


def _report_parts(
    report: LeakReport, width: int | None, stacks: int, max_frames: int | None
) -> list[RenderableType]:
    parts: list[RenderableType] = [process_header(report.process)]
    if report.process_verdict:
        lines = verdict_lines(report.process_verdict)
        parts += [Text(line if width is None else shortened(line, width)) for line in lines]
    parts += [Text(line, style="yellow") for line in loss_lines(report.losses)]
    parts += suppressed_lines(report.suppressed, width)
    if not report.sites and not report.suppressed:
        return [*parts, Text(why_empty(report.process))]
    if not report.sites:
        return parts
    estimates = is_estimate(report.process)
    names = _name_widths(report.sites, width, estimates)
    parts.append(_table(report.sites[:0], names, estimates, header=True))
    for site in report.sites[:stacks]:
        parts += [_table([site], names, estimates), _why(site, width)]
        parts += stack_lines(site, width, max_frames)
    # As few tables as possible: they take time to draw.
    rest: list[SiteReport] = []
    for site in report.sites[stacks:]:
        rest.append(site)
        if site.verdict in _STYLES:
            parts += [_table(rest, names, estimates), _why(site, width)]
            rest = []
    if rest:
        parts.append(_table(rest, names, estimates))
    return parts


def _why(site: SiteReport, width: int | None) -> Text:
    """Return the line under a call site: how sure its verdict is, and the reason."""
    sure = f"{site.confidence:.0%} sure: " if site.confidence else ""
    line = f"  {sure}{printable(site.reason)}"
    return Text(line if width is None else shortened(line, width), "dim")


def process_header(process: ProcessSummary) -> Text:
    """Return the line above the figures of a process."""
    parts = [
        f"live {estimated_amount(process)} in {estimated_count(process)} blocks",
        human_rate(process.growth_bytes_per_s),
        f"attached {human_duration(process.attached_s)}",
        mode_words(process),
    ]
    who = f"{process.pid} {printable(process.comm)}"
    ended = "" if process.state == ProcessState.TRACED else f" ({process.state})"
    return Text.assemble((who, "bold"), (ended, "yellow"), "  ", "  ".join(parts))


def why_empty(process: ProcessSummary) -> str:
    """Return why there is no call site to show."""
    since = f"since the attach {human_duration(process.attached_s)} ago"
    if process.allocated_count == 0:
        return f"no call sites: nothing was allocated {since}; older blocks are not seen"
    if process.live_count == 0:
        return f"no call sites: all {process.allocated_count:,} blocks allocated {since} were freed again"
    return f"no call sites yet: they come with the daemon's next tick ({since})"


def _table(
    sites: Sequence[SiteReport], names: tuple[int, int], estimates: bool, *, header: bool = False
) -> Table:
    """Return rows with widths of their own, so that tables with stacks between them line up."""
    function_width, where_width = names
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=header, header_style="bold")
    table.add_column(_VERDICT[0], width=_VERDICT[1], no_wrap=True)
    for name, width in _ESTIMATE_COLUMNS if estimates else _FIGURE_COLUMNS:
        table.add_column(name, justify="right", width=width, no_wrap=True)
    table.add_column("function", width=function_width, no_wrap=True)
    table.add_column("where", max_width=where_width, no_wrap=True)
    for site in sites:
        table.add_row(
            Text(site.verdict, style=_STYLES.get(site.verdict, "")),
            Text(human_rate(site.growth_bytes_per_s), style="red" if site.growth_bytes_per_s > 0 else ""),
            human_bytes(site.live_bytes),
            *([human_bytes(round(site.live_bytes_stderr))] if estimates else []),
            f"{site.live_count:,}",
            *([f"{site.live_count_stderr:,.0f}"] if estimates else []),
            "-" if site.oldest_age_s is None else human_duration(site.oldest_age_s),
            Text(_function(site), overflow="ellipsis", style="bold"),
            Text(shortened(_where(site), where_width, keep_end=True), overflow="ellipsis"),
        )
    return table


def _name_widths(sites: Sequence[SiteReport], width: int | None, estimates: bool) -> tuple[int, int]:
    """Return the widths of the last two columns: what they need, or a fair part of what is left."""
    function = max(len("function"), *(cell_len(_function(site)) for site in sites))
    where = max(len("where"), *(cell_len(_where(site)) for site in sites))
    if width is None:
        return function, where
    columns = _ESTIMATE_COLUMNS if estimates else _FIGURE_COLUMNS
    left = max(20, width - sum(column + 1 for _, column in (_VERDICT, *columns)) - 1)
    function = min(function, max(left - where, left * 11 // 20))
    return function, min(where, left - function)


def _function(site: SiteReport) -> str:
    return readable_function(site.function) if site.function else "[unknown]"


def _where(site: SiteReport) -> str:
    """Return file:line, or the module with the offset of the blamed call."""
    if site.location:
        return printable(site.location)
    if not site.module:
        return "-"
    blamed = (f for f in site.stack if (f.function, f.module) == (site.function, site.module))
    offset = next((frame.offset for frame in blamed), None)
    name = printable(basename(site.module))
    return name if offset is None else f"{name}+{offset:#x}"
