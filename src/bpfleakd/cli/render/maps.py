"""The view of `bpfleakctl maps`: memory by use, what explains it, growing modules, the container's bill."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bpfleakd.cli.render.managed import area_lines, heap_line
from bpfleakd.cli.render.words import loss_lines, readable_function
from bpfleakd.model.address_space import AddressSpaceReport, JitModule, MemoryShares, MemoryUse, PinningSite
from bpfleakd.model.container import ContainerBill, ContainerLine
from bpfleakd.printable import printable, shortened
from bpfleakd.units import human_bytes, human_duration, human_rate

_USES = {
    MemoryUse.HEAP: "heap",
    MemoryUse.MMAP: "mmap anonymous",
    MemoryUse.COMMIT: "committed",
    MemoryUse.THREAD_STACKS: "thread stacks",
    MemoryUse.FILES: "files, libraries",
    MemoryUse.JIT: "JIT code",
    MemoryUse.SHARED: "shared",
    MemoryUse.RESERVED: "reserved",
    MemoryUse.VDSO: "vdso, vvar",
}
_JIT_MODULES = 10
_JIT_FIGURES_WIDTH = 23

_PATH_CHARS = 60


def maps_view(report: AddressSpaceReport, *, width: int | None) -> RenderableType:
    """Return the tables one under the other; `width` is the terminal's (None: as wide as it gets)."""
    parts: list[RenderableType] = [_header(report), _totals(report)]
    if report.managed:
        parts += [Text(line) for line in (heap_line(report.managed), *area_lines(report.managed.areas))]
    parts += [Text(line, style="yellow") for line in loss_lines(report.losses)]
    if report.bill:
        parts += [_bill(report), Text()]
    if report.container:
        parts += [*container_view(report.container), Text()]
    parts += [_uses(report), Text(), _explained(report.shares)]
    if report.jit_modules:
        parts += [Text(), *_jit(report.jit_modules, width)]
    return Group(*parts)


def _header(report: AddressSpaceReport) -> Text:
    who = f"{report.pid} {printable(report.comm)}"
    page_tables = human_bytes(report.page_table_bytes)
    words = f"  attached {human_duration(report.attached_s)}  page tables {page_tables}"
    return Text.assemble((who, "bold"), words)


def _totals(report: AddressSpaceReport) -> Text:
    figures = [
        f"resident {human_bytes(report.resident_bytes)} (peak {human_bytes(report.peak_resident_bytes)})",
        f"virtual {human_bytes(report.virtual_bytes)}",
        *([f"swap {human_bytes(report.swap_bytes)}"] if report.swap_bytes else []),
    ]
    return Text("  ".join(figures))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _bill(report: AddressSpaceReport) -> Group:
    """The memory by kind, and where its growth goes."""
    table = _table("memory", "growth")
    table.add_column("kind", no_wrap=True)
    table.add_column("")
    for line in report.bill:
        growth = line.growth_bytes_per_s
        rate = Text("-") if not growth else Text(human_rate(growth), style="red" if growth > 0 else "")
        kind = Text(line.kind.value, style="bold")
        table.add_row(human_bytes(line.bytes), rate, kind, printable(line.note))
    summary = [Text(printable(report.growth_summary), "bold")] if report.growth_summary else []
    return Group(*summary, *_pinned(report.pinned_by), table)


def _pinned(sites: tuple[PinningSite, ...]) -> list[Text]:
    """The call sites that pin freed memory."""
    lines = [
        Text(
            f"  {human_bytes(site.free_bytes):>10} by {site.blocks:,} live blocks of "
            f"{readable_function(site.function or '[unknown]')}  "
            + printable(site.location or site.module or "")
        )
        for site in sites
    ]
    return [Text("freed memory is held by live blocks in the same pages:"), *lines] if lines else []


def _uses(report: AddressSpaceReport) -> Table:
    swap = ["swap"] if report.swap_bytes else ["dirty"]
    table = _table("resident", "growth", "virtual", "growth", *swap, "regions")
    table.add_column("use", no_wrap=True)
    for use in sorted(report.uses, key=lambda use: (-use.resident_bytes, -use.virtual_bytes)):
        table.add_row(
            human_bytes(use.resident_bytes),
            _growth(use.resident_growth_bytes),
            human_bytes(use.virtual_bytes),
            _growth(use.virtual_growth_bytes),
            human_bytes(use.swap_bytes if report.swap_bytes else use.private_dirty_bytes),
            f"{use.regions:,}",
            Text(_USES[use.use], style="bold"),
        )
    table.add_row(*_sums(report), style="bold")
    return table


def _sums(report: AddressSpaceReport) -> list[RenderableType]:
    def total(field: str) -> int:
        return sum(getattr(use, field) for use in report.uses)

    return [
        human_bytes(report.resident_bytes),
        _growth(total("resident_growth_bytes")),
        human_bytes(report.virtual_bytes),
        _growth(total("virtual_growth_bytes")),
        human_bytes(report.swap_bytes or total("private_dirty_bytes")),
        f"{total('regions'):,}",
        "all",
    ]


def _growth(size_bytes: int) -> Text:
    if not size_bytes:
        return Text("-")
    sign = "+" if size_bytes > 0 else ""
    return Text(f"{sign}{human_bytes(size_bytes)}", style="red" if size_bytes > 0 else "")


def _explained(shares: MemoryShares) -> Group:
    """Return the resident memory as a sum: what is tracked, what the allocator keeps, the rest."""
    table = _table("resident")
    table.add_column("", no_wrap=True)
    for size_bytes, words in (
        (shares.tracked_heap_bytes, "heap: live blocks since the attach"),
        (shares.tracked_mmap_bytes, "mmap: mapped since the attach, by call sites"),
        (shares.tracked_commit_bytes, "commit: committed since the attach, by call sites"),
        (
            shares.allocator_retained_bytes,
            "held by the allocator: freed, older than the attach, or its own data",
        ),
        (shares.rest_bytes, "the rest: not attributed to call sites"),
    ):
        table.add_row(human_bytes(size_bytes), words)
    return Group(Text(f"explained: {shares.explained_share:.1%} of the resident memory", "bold"), table)


def _jit(modules: tuple[JitModule, ...], width: int | None) -> list[RenderableType]:
    table = _table("code", "methods")
    table.add_column("module", no_wrap=True)
    for module in modules[:_JIT_MODULES]:
        name = printable(module.module)
        if width is not None:
            name = shortened(name, max(20, width - _JIT_FIGURES_WIDTH), keep_end=True)
        table.add_row(
            f"+{human_bytes(module.new_bytes)}", f"{module.new_methods:,}", Text(name, overflow="ellipsis")
        )
    more = len(modules) - _JIT_MODULES
    title = "compiled at run time since the attach"
    return [Text(title, "bold"), table, *([Text(f"… {more:,} more modules", "dim")] if more > 0 else [])]


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
        table.add_row(human_bytes(line.bytes), _line_growth(line), own, Text(line.kind.value, style="bold"))
    summary = [Text(bill.growth_summary, "bold")] if bill.growth_summary else []
    return [Text(f"container: {used}"), *summary, table]


def _line_growth(line: ContainerLine) -> Text:
    growth = line.growth_bytes_per_s
    return Text("-") if not growth else Text(human_rate(growth), style="red" if growth > 0 else "")
