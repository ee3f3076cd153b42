"""The view of `bpfleakctl top`: a header per process, a row per call site, reasons, stacks, OOM kills."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from bpfleakd.cli.render.descriptors import descriptor_lines
from bpfleakd.cli.render.managed import heap_lines
from bpfleakd.cli.render.sites import VERDICT_STYLES, site_layout, site_table, why_lines
from bpfleakd.cli.render.stacks import stack_lines
from bpfleakd.cli.render.suppressed import suppressed_lines
from bpfleakd.cli.render.words import (
    estimated_amount,
    estimated_count,
    is_estimate,
    loss_lines,
    mode_words,
    resource_lines,
    unseen_lines,
    verdict_lines,
    wrapped,
)
from bpfleakd.model.address_space import BillLine
from bpfleakd.model.oom import OomKill
from bpfleakd.model.process import GO_PROFILE_MODE, ProcessState, ProcessSummary, TracingMode
from bpfleakd.model.report import LeakReport, SiteReport
from bpfleakd.model.runtimes.goroutines import GoroutineGroup
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration, human_rate

_BILL_LINES = 5


def reports_view(reports: Sequence[LeakReport], *, width: int | None, stacks: int) -> RenderableType:
    """Return the reports one under the other.

    `width` is the terminal's (None: as wide as it gets), `stacks` the number of call sites a process
    whose stacks are shown.
    """
    if not reports:
        return Text("no process is traced: bpfleakctl attach PID")
    parts: list[RenderableType] = []
    for report in reports:
        parts += [Text(), *_report_parts(report, width, stacks)]
    return Group(*parts[1:])


def _report_parts(report: LeakReport, width: int | None, stacks: int) -> list[RenderableType]:
    parts: list[RenderableType] = [process_header(report.process)]
    if report.oom:
        parts += [Text(line, "red") for line in _wrapped(oom_lines(report.oom), width)]
    sentences = [
        *(verdict_lines(report.process_verdict) if report.process_verdict else []),
        *unseen_lines(report.process),
        *heap_lines(report.managed, report.types, report.process.notes),
        *_goroutine_lines(report.goroutines),
        *resource_lines(report.resources),
    ]
    parts += [Text(line) for line in _wrapped(sentences, width)]
    parts += descriptor_lines(report, width, stacks)
    parts += [Text(line, style="yellow") for line in loss_lines(report.losses)]
    if report.names_pending:
        parts.append(Text("some functions have no names yet: they are still being looked up"))
    parts += suppressed_lines(report.suppressed, width)
    if not report.sites and report.process.mode == TracingMode.WATCH:
        return [*parts, Text("no call sites: it was watched, and not traced")]
    if not report.sites and not report.suppressed:
        return [*parts, Text(why_empty(report.process))]
    if not report.sites:
        return parts
    layout = site_layout(report.sites, width, is_estimate(report.process))
    parts.append(site_table(report.sites[:0], layout, header=True))
    for site in report.sites[:stacks]:
        parts += [site_table([site], layout), *why_lines(site, width)]
        parts += stack_lines(site, width)
    # As few tables as possible, since they take time to draw.
    rest: list[SiteReport] = []
    for site in report.sites[stacks:]:
        rest.append(site)
        if site.verdict in VERDICT_STYLES:
            parts += [site_table(rest, layout), *why_lines(site, width)]
            rest = []
    if rest:
        parts.append(site_table(rest, layout))
    return parts


def _wrapped(sentences: Sequence[str], width: int | None) -> list[str]:
    return [line for sentence in sentences for line in wrapped(sentence, width)]


def _goroutine_lines(groups: Sequence[GoroutineGroup]) -> list[str]:
    """Return the number of goroutines, and where most of them were started; no line without goroutines."""
    if not groups:
        return []
    most = max(groups, key=lambda group: group.count)
    place = (most.started_at or "").rpartition("/")[2]
    where = " ".join(word for word in (most.started_in or "?", place) if word)
    doing = next(iter(most.states), "")
    total = sum(group.count for group in groups)
    return [printable(f"{total:,} goroutines, {most.count:,} of them started at {where}: {doing}")]


def process_header(process: ProcessSummary) -> Text:
    """Return the line above the figures of a process."""
    return header_lines(process, None)[0]


def header_lines(process: ProcessSummary, width: int | None) -> list[Text]:
    """The same as a few lines of whole facts, where it takes more than `width`."""
    parts = [
        f"live {estimated_amount(process)} in {estimated_count(process)} blocks",
        *([] if process.growth_bytes_per_s is None else [human_rate(process.growth_bytes_per_s)]),
        f"attached {human_duration(process.attached_s)}",
        mode_words(process),
    ]
    who = f"{process.pid} {printable(process.comm)}"
    ended = "" if process.state == ProcessState.TRACED else f" ({process.state})"
    lines = [Text.assemble((who, "bold"), (ended, "yellow"))]
    for part in parts:
        if width is not None and lines[-1].cell_len + 2 + len(part) > width:
            lines.append(Text(f"  {part}"))
        else:
            lines[-1].append(f"  {part}")
    return lines


def why_empty(process: ProcessSummary) -> str:
    """Return why there are no call sites to show."""
    since = f"since the attach {human_duration(process.attached_s)} ago"
    if process.mode == GO_PROFILE_MODE and process.allocated_count == 0:
        return "no call sites: Go's heap profile has what two garbage collections left, and nothing yet"
    if process.allocated_count == 0:
        return f"no call sites: nothing was allocated {since}; older blocks are not included"
    if process.live_count == 0:
        return f"no call sites: all {process.allocated_count:,} blocks allocated {since} were freed again"
    return f"no call sites yet: they come with the daemon's next tick ({since})"


def oom_lines(kill: OomKill) -> list[str]:
    """Its memory at the kill, and the use of that shortly before."""
    figures = (
        ("anonymous", kill.anon_bytes),
        ("files", kill.file_bytes),
        ("shared", kill.shmem_bytes),
        ("page tables", kill.page_table_bytes),
    )
    had = ", ".join(f"{human_bytes(size)} {what}" for what, size in figures if size)
    lines = [f"killed by the kernel because memory had run out{': it had ' if had else ''}{had}"]
    if kill.bill and kill.bill_age_s is not None:
        spent = ", ".join(map(_words, kill.bill[:_BILL_LINES]))
        lines.append(f"{human_duration(kill.bill_age_s)} before: {spent}")
    if kill.bill_missing:
        what = "no later bill of its memory" if kill.bill else "no bill of its memory"
        lines.append(f"{what}: {printable(kill.bill_missing)}")
    if kill.growth_summary:
        lines.append(printable(kill.growth_summary))
    if kill.container:
        bill = kill.container
        parts = ", ".join(f"{human_bytes(line.bytes)} {line.kind}" for line in bill.lines[:_BILL_LINES])
        limit = human_bytes(bill.limit_bytes)
        lines.append(f"its container: {human_bytes(bill.used_bytes)} of {limit}: {parts}")
    return lines


def _words(line: BillLine) -> str:
    return f"{human_bytes(line.bytes)} {line.kind}" + (f" ({printable(line.note)})" if line.note else "")
