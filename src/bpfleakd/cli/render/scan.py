"""The view of `bpfleakctl scan`: sums by kind, then each call site that loses memory."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.report import process_header
from bpfleakd.cli.render.stacks import stack_lines
from bpfleakd.cli.render.words import loss_lines
from bpfleakd.model.scan import (
    Reachability,
    ReachabilitySums,
    ScanCaveat,
    ScanMethod,
    ScannedSite,
    ScanReport,
)
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration

_WORDS = {
    Reachability.DIRECTLY_LOST: "directly lost",
    Reachability.INDIRECTLY_LOST: "indirectly lost: only lost blocks point to them",
    Reachability.POSSIBLY_LOST: "possibly lost: only interior pointers lead to them",
    Reachability.STILL_REACHABLE: "still reachable",
}
_CAVEATS = {
    ScanCaveat.SAMPLED: "only some blocks are recorded; blocks that others point to seem reachable",
    ScanCaveat.BLOCKS_MISSED: "blocks were missed; blocks that they point to seem reachable",
    ScanCaveat.MEMORY_UNREAD: "some memory could not be read; blocks that only it points to seem lost",
    ScanCaveat.NOT_STOPPED: "the process was running; blocks that moved during both readings seem lost",
    ScanCaveat.NO_REGISTERS: "registers were not read; blocks that only they point to seem lost",
}


def scan_view(report: ScanReport, *, width: int | None) -> RenderableType:
    """Return it all; `width` is the terminal's (None: as wide as it gets)."""
    parts: list[RenderableType] = [process_header(report.process)]
    parts += [Text(line, style="yellow") for line in loss_lines(report.losses)]
    parts.append(Text(_how(report)))
    parts += [Text(f"note: {_CAVEATS[caveat]}", style="yellow") for caveat in report.caveats]
    if not report.known_heap_bytes:
        parts.append(Text("note: freed memory counts as in use", "dim"))
    parts.append(_table(report.sums))
    if report.young_count:
        age = human_duration(report.older_than_s)
        amount = _amount(report.young_bytes, report.young_count)
        parts.append(Text(f"not judged: {amount} younger than {age} (--older-than)", "dim"))
    for pattern, sums in report.suppressed.items():
        parts.append(Text(f"suppressed by leak:{printable(pattern)}: {_figures(sums)}", "dim"))
    for site in report.sites:
        parts += [Text(), *_site_parts(site, width)]
    return Group(*parts)


def _how(report: ScanReport) -> str:
    milliseconds = f"{report.stopped_s * 1000:.0f} ms"
    stopped = {
        ScanMethod.STOPPED: f"the process was stopped for {milliseconds}",
        ScanMethod.PARTLY_STOPPED: f"the process was stopped for {milliseconds} and read twice",
        ScanMethod.RUNNING: "the process was not stopped and read twice",
    }[report.method]
    return f"scanned {human_bytes(report.read_bytes)} in {report.took_s:.1f} s; {stopped}"


def _table(sums: ReachabilitySums) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for kind, size_bytes, count in _by_kind(sums):
        is_lost = kind in (Reachability.DIRECTLY_LOST, Reachability.INDIRECTLY_LOST) and count
        table.add_row(
            human_bytes(size_bytes), f"{count:,}", Text(_WORDS[kind], "bold red" if is_lost else "")
        )
    return table


def _by_kind(sums: ReachabilitySums) -> Iterable[tuple[Reachability, int, int]]:
    for kind in Reachability:
        name = kind.name.lower()
        yield kind, getattr(sums, f"{name}_bytes"), getattr(sums, f"{name}_count")


def _figures(sums: ReachabilitySums) -> str:
    return ", ".join(
        f"{_amount(size_bytes, count)} {kind.value.replace('-', ' ')}"
        for kind, size_bytes, count in _by_kind(sums)
        if count
    )


def _site_parts(site: ScannedSite, width: int | None) -> Iterable[RenderableType]:
    yield Text.assemble((f"site {site.site}", "bold"), f": {_figures(site.sums)}")
    yield from stack_lines(site, width)
    if site.blocks:
        yield _blocks(site)
    if site.blocks and site.left_out_count:
        yield Text(f"… {site.left_out_count:,} more blocks (--limit lists more)", "dim")


def _blocks(site: ScannedSite) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("address", no_wrap=True)
    for name in ("size", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("thread", "kind"):
        table.add_column(name, no_wrap=True)
    for block in site.blocks:
        table.add_row(
            f"{block.address:#x}",
            f"{block.size_bytes:,}",
            human_duration(block.age_s),
            Text(f"{block.tid} {printable(block.comm)}".rstrip()),
            block.reachability.value.replace("-", " "),
        )
    return table


def _amount(size_bytes: int, count: int) -> str:
    return f"{human_bytes(size_bytes)} in {count:,} block{'s' * (count != 1)}"
