"""The rows of call sites: verdict, figures, the blamed function and its place; and the verdict's reason."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.headlines import headline, headline_place
from bpfleakd.cli.render.stacks import file_and_offset
from bpfleakd.cli.render.words import fitted, readable_function, wrapped
from bpfleakd.model.report import BlockType, SiteReport
from bpfleakd.model.verdict import Verdict
from bpfleakd.printable import printable, shortened
from bpfleakd.units import human_bytes, human_duration, human_rate

VERDICT_STYLES = {Verdict.LEAK: "bold red", Verdict.GROWING: "yellow"}

# What the figures need: "-99.9 MiB/s", "1023 KiB", "4,000,000", "23h59m".
_VERDICT = ("verdict", 7)
_FIGURE_COLUMNS = (("growth/s", 11), ("live", 8), ("count", 9), ("oldest", 7))
_ESTIMATE_COLUMNS = (
    ("growth/s", 11),
    ("live", 8),
    ("live ±", 8),
    ("count", 9),
    ("count ±", 8),
    ("oldest", 7),
)
# From how many columns on there is room for a figure beside the names.
_ROOM_FOR = {"live": 50, "live ±": 60, "count": 70, "count ±": 70, "oldest": 78}
_ROOM_FOR_WHERE = 60
_SHORTEST_NAMES = 20
# Figures that leave, the first first, so that a method keeps its class and a line its file.
_DISPENSABLE = ("oldest", "count ±", "count", "live ±")
_METHOD_WIDTH = 26
_LINE_WIDTH = 22


class SiteLayout(Struct, frozen=True):
    """The figures that are shown, with their widths, and the widths of the names; `where` 0: left out."""

    columns: tuple[tuple[str, int], ...]
    function: int
    where: int


def site_layout(sites: Sequence[SiteReport], width: int | None, estimates: bool) -> SiteLayout:
    """Return the layout of a table: names get what they need, or a fair part of what figures leave."""
    columns = list(_ESTIMATE_COLUMNS if estimates else _FIGURE_COLUMNS)
    function = max([len("function"), *(cell_len(headline(site)) for site in sites)])
    where = max([len("where"), *(cell_len(_where(site)) for site in sites)])
    if width is None:
        return SiteLayout(tuple(columns), function, where)
    columns = [column for column in columns if width >= _ROOM_FOR.get(column[0], 0)]
    needed = min(function, _METHOD_WIDTH) + min(where, _LINE_WIDTH)
    for name in _DISPENSABLE:
        if width >= _ROOM_FOR_WHERE and _left(columns, width) < needed:
            columns = [column for column in columns if column[0] != name]
    left = max(_SHORTEST_NAMES, _left(columns, width))
    if width < _ROOM_FOR_WHERE:
        return SiteLayout(tuple(columns), min(function, left), 0)
    function = min(function, max(left - where, left * 11 // 20))
    return SiteLayout(tuple(columns), function, min(where, left - function))


def _left(columns: Sequence[tuple[str, int]], width: int) -> int:
    return width - 1 - sum(needed + 1 for _name, needed in (_VERDICT, *columns))


def why_lines(site: SiteReport, width: int | None) -> list[Text]:
    """Return the lines under a call site: how sure its verdict is, the reason, and what the blocks hold."""
    sure = f"{site.confidence:.0%} sure: " if site.confidence else ""
    return [
        *(Text(line, "dim") for line in wrapped(f"  {sure}{printable(site.reason)}", width)),
        *(Text(f"  {line}", "dim") for line in types_lines(site.types, None if width is None else width - 2)),
    ]


def types_lines(types: Sequence[BlockType], width: int | None) -> list[str]:
    """Return the line with the classes of the objects in the blocks, if they are known."""
    if not types:
        return []
    parts = [
        f"{readable_function(one.type)} {one.share:.0%}"
        + (f" at +{one.offset_bytes}" if one.offset_bytes else "")
        for one in types
    ]
    line = "objects: " + ", ".join(parts)
    return [fitted(line, width)]


def site_table(
    sites: Sequence[SiteReport],
    layout: SiteLayout,
    *,
    header: bool = False,
    selected: int | None = None,
) -> Table:
    """Rows with fixed widths, so tables with stacks between them line up."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=header, header_style="bold")
    table.add_column(_VERDICT[0], width=_VERDICT[1], no_wrap=True)
    for name, needed in layout.columns:
        table.add_column("±" if name.endswith("±") else name, justify="right", width=needed, no_wrap=True)
    table.add_column("function", width=layout.function, no_wrap=True)
    if layout.where:
        table.add_column("where", max_width=layout.where, no_wrap=True)
    for place, site in enumerate(sites):
        figures: dict[str, Text | str] = {
            "growth/s": Text(
                human_rate(site.growth_bytes_per_s), style="red" if site.growth_bytes_per_s > 0 else ""
            ),
            "live": human_bytes(site.live_bytes),
            "live ±": human_bytes(round(site.live_bytes_stderr)),
            "count": f"{site.live_count:,}",
            "count ±": f"{site.live_count_stderr:,.0f}",
            "oldest": "-" if site.oldest_age_s is None else human_duration(site.oldest_age_s),
        }
        table.add_row(
            Text(site.verdict, style=VERDICT_STYLES.get(site.verdict, "")),
            *(figures[name] for name, _needed in layout.columns),
            Text(headline(site, layout.function), style="bold"),
            *(
                [Text(shortened(_where(site), layout.where, keep_end=True), overflow="ellipsis")]
                if layout.where
                else []
            ),
            style="reverse" if place == selected else "",
        )
    return table


def _where(site: SiteReport) -> str:
    """Return file:line of the program's own function, or the module with the offset of the blamed call.

    Objects of a managed heap have their type there. A function without a name is shown by its beginning,
    which is the same for all of its calls.
    """
    known = headline_place(site)
    if site.type:
        return f"{known}, {printable(site.type)}" if known else printable(site.type)
    if known:
        return known
    if not site.module:
        return "-"
    blamed = (f for f in site.stack if (f.function, f.module) == (site.function, site.module))
    offset = (
        site.function_start if site.function_start is not None else next((f.offset for f in blamed), None)
    )
    return file_and_offset(site.module, offset)
