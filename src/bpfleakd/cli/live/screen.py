"""The screen of `bpfleakctl top`: a view and the daemon's answer as lines that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.live.detail import detail_lines
from bpfleakd.cli.live.feed import Answer
from bpfleakd.cli.live.help import footer, help_lines
from bpfleakd.cli.live.state import Page, Row, ShownRows, View, selected_index
from bpfleakd.cli.render.descriptors import all_descriptor_lines, growing_site_lines
from bpfleakd.cli.render.groups import group_name, groups_table
from bpfleakd.cli.render.headlines import headline, headline_place
from bpfleakd.cli.render.processes import by_severity, processes_table
from bpfleakd.cli.render.report import header_lines, why_empty
from bpfleakd.cli.render.sites import site_layout, site_table, why_lines
from bpfleakd.cli.render.stacks import stack_lines
from bpfleakd.cli.render.suppressed import suppressed_lines
from bpfleakd.cli.render.words import is_estimate, loss_lines, resource_lines, verdict_lines, wrapped
from bpfleakd.model.process import ProcessSummary
from bpfleakd.model.report import LeakReport, SiteReport, SortKey

_LOSSES = 3
# Fewer lines are useless as a preview of a stack.
_PREVIEW_MIN = 4
_PROCESS_FIGURES: dict[SortKey, Callable[[ProcessSummary], float]] = {
    SortKey.GROWTH: lambda process: process.growth_bytes_per_s or 0.0,
    SortKey.LIVE: lambda process: process.live_bytes,
    SortKey.COUNT: lambda process: process.live_count,
}


class Drawn(Struct, frozen=True):
    """The lines, and what keys act on."""

    renderable: RenderableType
    shown: ShownRows


class _Room(Struct, frozen=True):
    """The space to fill; `stacks`: shows the selected call site's stack below the list."""

    width: int
    height: int
    stacks: bool
    ascii_only: bool


def draw(
    view: View,
    answer: Answer | None,
    width: int,
    height: int,
    *,
    note: str = "",
    result: Sequence[Text] = (),
    stacks: bool = True,
    ascii_only: bool = False,
) -> Drawn:
    """Return a screen of `height` lines, with `note` in the first; `answer` is None until there is one.

    `result` is shown in place of it while it is read.
    """
    room = _Room(width, max(height - 1, 1), stacks, ascii_only)
    if view.helping:
        drawn = Drawn(Group(*_fitted(help_lines(width), room)), ShownRows())
    elif view.reading:
        drawn = _scrollable(view, [Text(note, "yellow")] if note else [], result, room)
    elif answer is None:
        drawn = Drawn(Group(*_fitted([Text(note or "waiting for the daemon …", "dim")], room)), ShownRows())
    else:
        drawn = _PAGES[view.page](view, answer, room, [Text(note, "yellow")] if note else [])
    last = footer(view, width, _position(view, answer, drawn.shown))
    return Drawn(Group(drawn.renderable, _cut(last, width)), drawn.shown)


def _position(view: View, answer: Answer | None, shown: ShownRows) -> str:
    """The position of the selected row: "45 of 53"; with a plus if the limit cut the list."""
    if not shown.rows or answer is None:
        return ""
    is_cut = view.pid is not None and answer.question.limit == len(shown.rows)
    return f"{selected_index(view, shown.rows) + 1:,} of {len(shown.rows):,}{'+' * is_cut}"


def _processes(view: View, answer: Answer, room: _Room, above: list[Text]) -> Drawn:
    traced = [
        row for row in by_severity(answer.processes) if _matches(view, str(row.process.pid), row.process.comm)
    ]
    if view.sort is not SortKey.VERDICT:
        traced.sort(key=lambda row: -_PROCESS_FIGURES[view.sort](row.process))
    traced_pids = {row.process.pid for row in answer.processes}
    watched = [
        row for row in answer.watched if row.pid not in traced_pids and _matches(view, str(row.pid), row.comm)
    ]
    if view.reverse:
        traced.reverse()
        watched.reverse()
    anybody = answer.processes or answer.watched
    empty = "no process matches" if anybody else "no process is traced: bpfleakctl attach PID"
    counts = f"{len(traced_pids):,} traced, {len(answer.watched):,} watched"
    title = Text.assemble((counts, "bold"), *_marks(view))
    rows = [Row(str(pid)) for pid in (*(row.process.pid for row in traced), *(row.pid for row in watched))]
    count = len(traced)
    return _list(
        view,
        [*above, title],
        rows,
        lambda first, last, selected: processes_table(
            traced[first:last],
            width=room.width,
            selected=selected,
            watched=watched[max(first - count, 0) : max(last - count, 0)],
        ),
        room,
        empty,
    )


def _groups(view: View, answer: Answer, room: _Room, above: list[Text]) -> Drawn:
    report = answer.groups
    if report is None or answer.question.group is not view.group:
        return _list(view, above, [], _no_table, room, "waiting for the daemon …")
    groups = reversed(report.groups) if view.reverse else report.groups
    matching = [group for group in groups if _matches(view, group_name(group, view.group, None))]
    rows = [Row(group_name(group, view.group, None), group.sites) for group in matching]
    head = [*above, *_head(view, report.process, room.width), *_losses(report.losses, room.width)]
    head += suppressed_lines(report.suppressed, None)
    return _list(
        view,
        head,
        rows,
        lambda first, last, selected: groups_table(
            matching[first:last], view.group, room.width, header=True, selected=selected
        ),
        room,
        "no group matches" if report.groups else why_empty(report.process),
    )


def _sites(view: View, answer: Answer, room: _Room, above: list[Text]) -> Drawn:
    report = answer.report
    if report is None:
        return _list(view, above, [], _no_table, room, "waiting for the daemon …")
    sites = [
        site
        for site in (reversed(report.sites) if view.reverse else report.sites)
        if (view.within is None or site.site in view.within.sites)
        and _matches(view, headline(site), site.module or "", headline_place(site) or "")
    ]
    head = [*above, *_report_head(view, report, room.width)]
    layout = site_layout(sites, room.width, is_estimate(report.process))
    selected = selected_index(view, rows := [Row(site.site) for site in sites])
    below = _preview(sites[selected], room.width) if sites and room.stacks else []
    return _list(
        view,
        head,
        rows,
        lambda first, last, chosen: site_table(sites[first:last], layout, header=True, selected=chosen),
        room,
        "no call site matches" if report.sites else why_empty(report.process),
        below,
    )


def _detail(view: View, answer: Answer, room: _Room, above: list[Text]) -> Drawn:
    report = answer.report
    if report is None:
        return _list(view, above, [], _no_table, room, "waiting for the daemon …")
    head = [*above, *_head(view, report.process, room.width)]
    site = next((site for site in report.sites if site.site == view.site), None)
    if site is None:
        return _list(view, head, [], _no_table, room, f"call site {view.site} holds no memory any more")
    lines = detail_lines(site, answer.history, room.width, ascii_only=room.ascii_only)
    return _scrollable(view, head, lines, room)


def _descriptors(view: View, answer: Answer, room: _Room, above: list[Text]) -> Drawn:
    report = answer.report
    if report is None:
        return _list(view, above, [], _no_table, room, "waiting for the daemon …")
    words = [line for sentence in resource_lines(report.resources) for line in wrapped(sentence, room.width)]
    head = [*above, *_head(view, report.process, room.width), *map(Text, words)]
    return _scrollable(view, head, all_descriptor_lines(report, room.width), room)


_PAGES = {
    Page.PROCESSES: _processes,
    Page.GROUPS: _groups,
    Page.SITES: _sites,
    Page.DETAIL: _detail,
    Page.DESCRIPTORS: _descriptors,
}


def _scrollable(view: View, head: Sequence[Text], lines: Sequence[Text], room: _Room) -> Drawn:
    height = max(room.height - len(head), 1)
    scroll_max = max(len(lines) - height, 0)
    scroll = min(view.scroll, scroll_max)
    shown = ShownRows(page_rows=height, scroll_max=scroll_max)
    return Drawn(Group(*_fitted([*head, *lines[scroll : scroll + height]], room)), shown)


def _list(
    view: View,
    head: list[Text],
    rows: Sequence[Row],
    table: Callable[[int, int, int], Table],
    room: _Room,
    empty: str,
    below: Sequence[Text] = (),
) -> Drawn:
    """Return a head, as many rows around the selected one as fit, and below them what fits of `below`."""
    if not rows:
        return Drawn(Group(*_fitted([*head, Text(empty)], room)), ShownRows())
    head = head[: max(room.height - 2, 0)]
    left = max(room.height - len(head) - 1, 1)
    if left < 2 * _PREVIEW_MIN:
        below = ()
    page = min(len(rows), max(left - len(below), (left + 1) // 2))
    selected = selected_index(view, rows)
    first = min(max(selected - page // 2, 0), len(rows) - page)
    free = left - page
    if len(below) > free:
        more = len(below) - free + 1
        below = [*below[: free - 1], Text(f"      … {more} more lines (Enter shows all)", "dim")]
    lines = [_cut(line, room.width) for line in (*below, *[Text()] * (free - len(below)))]
    shown = ShownRows(tuple(rows), page_rows=page)
    drawn_head = (_cut(line, room.width) for line in head)
    return Drawn(Group(*drawn_head, table(first, first + page, selected - first), *lines), shown)


def _no_table(first: int, last: int, selected: int) -> Table:
    raise AssertionError("there are no rows")


def _report_head(view: View, report: LeakReport, width: int) -> list[Text]:
    verdict = verdict_lines(report.process_verdict) if report.process_verdict else []
    told = "".join(verdict)
    growing = [line for line in resource_lines(report.resources) if line not in told]
    return [
        *_head(view, report.process, width),
        *(Text(line) for sentence in (*verdict, *growing) for line in wrapped(sentence, width)),
        *growing_site_lines(report.descriptor_sites, width),
        *_losses(report.losses, width),
        *suppressed_lines(report.suppressed, None),
    ]


def _head(view: View, process: ProcessSummary, width: int) -> list[Text]:
    marks = Text.assemble(*_marks(view))
    first, *others = header_lines(process, width - marks.cell_len)
    return [Text.assemble(marks, first), *others]


def _marks(view: View) -> list[tuple[str, str] | str]:
    """The unusual settings: a pause, a group, another order."""
    if view.page is Page.PROCESSES:
        return ["  ", ("paused", "reverse")] if view.paused else []
    marks: list[tuple[str, str] | str] = [("paused", "reverse"), " "] if view.paused else []
    if view.within:
        marks += [(f"[{view.within.name}]", "bold"), " "]
    return marks


def _losses(losses: dict[str, int], width: int) -> list[Text]:
    lines = loss_lines(losses)
    shown = [Text(part, "yellow") for line in lines[:_LOSSES] for part in wrapped(line, width)]
    left = len(lines) - _LOSSES
    return (
        [*shown, Text(f"… {left} more kinds of losses (--once shows all)", "yellow")] if left > 0 else shown
    )


def _preview(site: SiteReport, width: int) -> list[Text]:
    return [Text(), *why_lines(site, width), *stack_lines(site, width)]


def _matches(view: View, *texts: str) -> bool:
    wanted = view.filter.casefold()
    return any(wanted in text.casefold() for text in texts)


def _fitted(lines: Sequence[Text], room: _Room) -> list[Text]:
    """Exactly as many lines as fit."""
    filled = [*lines[: room.height], *[Text()] * (room.height - len(lines))]
    return [_cut(line, room.width) for line in filled]


def _cut(line: Text, width: int) -> Text:
    line = line.copy()
    line.no_wrap = True
    line.truncate(width, overflow="ellipsis")
    return line
