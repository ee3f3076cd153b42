"""The view of `bpfleakctl report`: for each call site its sums, its stack, and its blocks one by one."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.names import short_function, unbounded_function
from bpfleakd.cli.render.report import process_header
from bpfleakd.cli.render.sites import types_lines
from bpfleakd.cli.render.stacks import basename, stack_lines
from bpfleakd.cli.render.suppressed import suppressed_lines
from bpfleakd.cli.render.words import loss_lines, readable_function
from bpfleakd.model.blocks import BlockReport, BlocksReport, SiteBlocks
from bpfleakd.model.code.stack import Frame
from bpfleakd.printable import printable, shortened
from bpfleakd.units import human_bytes, human_duration

_ADDRESS_WIDTH = len("0x7fffffffffff")
_AGE_WIDTH = len("23h59m")
_SHORTEST_NAME = 16


def blocks_view(report: BlocksReport, *, width: int | None) -> RenderableType:
    """Return it all; `width` is the terminal's (None: as wide as it gets)."""
    parts: list[RenderableType] = [process_header(report.process)]
    parts += [Text(line, style="yellow") for line in loss_lines(report.losses)]
    parts += suppressed_lines(report.suppressed, width)
    parts.append(Text(_summary(report)))
    for site in report.sites:
        parts += [Text(), *_site_parts(site, width)]
    if report.left_out_sites:
        sites = "call site" if report.left_out_sites == 1 else "call sites"
        parts += [Text(), Text(f"… {report.left_out_sites:,} more {sites} (--limit lists more)", "dim")]
    return Group(*parts)


def _summary(report: BlocksReport) -> str:
    old = f" {human_duration(report.older_than_s)} old or older" if report.older_than_s else ""
    if not report.live_count:
        return f"no outstanding blocks{old}"
    left_out = f"; {report.left_out_count:,} not listed" if report.left_out_count else ""
    return f"outstanding: {_amount(report.live_bytes, report.live_count)}{old}{left_out}"


def _site_parts(site: SiteBlocks, width: int | None) -> Iterable[RenderableType]:
    amount = _amount(site.live_bytes, site.live_count)
    yield Text.assemble((f"site {site.site}", "bold"), f" {site.kind.value}: {amount}")
    yield from stack_lines(site, width)
    yield from map(Text, types_lines(site.types, width))
    yield _blocks(site, width)
    if site.left_out_count:
        yield Text(f"… {site.left_out_count:,} more blocks (--limit lists more)", "dim")


def _blocks(site: SiteBlocks, width: int | None) -> Table:
    sizes = [f"{block.size_bytes:,}" for block in site.blocks]
    threads = [_thread(block) for block in site.blocks]
    size_width = max(len("size"), *map(len, sizes))
    thread_width = max(len("thread"), *map(cell_len, threads))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("address", width=_ADDRESS_WIDTH, no_wrap=True)
    table.add_column("size", justify="right", width=size_width, no_wrap=True)
    table.add_column("age", justify="right", width=_AGE_WIDTH, no_wrap=True)
    table.add_column("thread", width=thread_width, no_wrap=True)
    table.add_column("caller", no_wrap=True)
    room = None
    if width is not None:
        used = _ADDRESS_WIDTH + size_width + _AGE_WIDTH + thread_width + 4
        room = max(_SHORTEST_NAME, width - used)
    caller = _caller(site.caller, room)
    for block, size, thread in zip(site.blocks, sizes, threads, strict=True):
        age = human_duration(block.age_s)
        table.add_row(f"{block.address:#x}", size, age, Text(thread), Text(caller, overflow="ellipsis"))
    return table


def _amount(live_bytes: int, live_count: int) -> str:
    return f"{human_bytes(live_bytes)} ({live_bytes:,} B) in {live_count:,} block{'s' * (live_count != 1)}"


def _thread(block: BlockReport) -> str:
    return f"{block.tid} {printable(block.comm)}".rstrip()


def _caller(frame: Frame | None, room: int | None) -> str:
    if frame is None:
        return "[unknown]"
    name = readable_function(frame.function) if frame.function else f"{frame.address:#x}"
    if frame.location:
        where = printable(frame.location)
    else:
        where = printable(basename(frame.module)) if frame.module else f"[{frame.kind.value}]"
        where += "" if frame.offset is None else f"+{frame.offset:#x}"
    if room is None:
        return f"{unbounded_function(name)} {where}"
    # The end of a path says most, and the function must not vanish beside it.
    where = shortened(where, max(room - cell_len(name) - 1, room * 3 // 5), keep_end=True)
    return f"{short_function(name, max(1, room - cell_len(where) - 1))} {where}"
