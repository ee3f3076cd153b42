"""The pane of one call site: figures, the verdict's reason, history, threads and the whole stack."""

from __future__ import annotations

import textwrap

from rich.text import Text

from bpfleakd.cli.render.headlines import headline, headline_place
from bpfleakd.cli.render.sites import VERDICT_STYLES, types_lines
from bpfleakd.cli.render.stacks import stack_lines
from bpfleakd.cli.render.words import sparkline
from bpfleakd.model.history import StoredHistory
from bpfleakd.model.report import SiteReport
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration, human_rate

_THREADS = 8
_REACHABLE = {
    True: "still reachable",
    False: "lost: nothing points to it any more",
    None: "partly lost",
}


def detail_lines(
    site: SiteReport, history: StoredHistory | None, width: int, *, ascii_only: bool = False
) -> list[Text]:
    """Return the lines of the pane, none wider than `width` but those of names."""
    verdict = Text.assemble((site.verdict, VERDICT_STYLES.get(site.verdict, "bold")))
    if site.confidence:
        verdict.append(f"  {site.confidence:.0%} sure")
    if site.leak_bytes_per_s:
        verdict.append(f", retains {human_rate(site.leak_bytes_per_s)}")
    figures = [
        f"live       {human_bytes(site.live_bytes)} in {site.live_count:,} blocks, "
        f"at most {human_bytes(site.peak_live_bytes)}",
        f"allocated  {human_bytes(site.allocated_bytes)} in {site.allocated_count:,} blocks"
        + ("" if site.temporary_count is None else f", {site.temporary_count:,} of them temporary"),
        f"growth     {human_rate(site.growth_bytes_per_s)}",
        "oldest     " + ("-" if site.oldest_age_s is None else human_duration(site.oldest_age_s)),
        f"memory     {site.kind}; {_reachability(site)}",
        f"call site  {site.site}",
        *(f"objects    {line.removeprefix('objects: ')}" for line in types_lines(site.types, width - 2)),
    ]
    return [
        Text(headline(site), "bold"),
        *([Text(where, "dim")] if (where := headline_place(site)) else []),
        verdict,
        *map(Text, textwrap.wrap(printable(site.reason), width)),
        Text(),
        *_course(site, history, width, ascii_only),
        *map(Text, figures),
        Text(),
        *_threads(site),
        Text(f"stack, {len(site.stack)} frames, innermost first", "bold"),
        *stack_lines(site, width),
    ]


def _reachability(site: SiteReport) -> str:
    if site.scanned_age_s is None:
        return "not scanned"
    return f"{_REACHABLE[site.reachable]} (scan {human_duration(site.scanned_age_s)} ago)"


def _course(site: SiteReport, history: StoredHistory | None, width: int, ascii_only: bool) -> list[Text]:
    if history is None:
        return []
    saved = next((saved for saved in history.sites if saved.site == site.site), None)
    if saved is None or not saved.low_bytes:
        return []
    line = sparkline(history.ends_s, saved.low_bytes, width, ascii_only=ascii_only)
    span = f"0 to {human_bytes(max(saved.low_bytes))} live, over {human_duration(history.ends_s[-1])}"
    return [Text(line, VERDICT_STYLES.get(site.verdict, "")), Text(span, "dim"), Text()]


def _threads(site: SiteReport) -> list[Text]:
    if not site.threads:
        return []
    rows = [
        Text(f"{human_bytes(by.live_bytes):>10} {by.live_count:>10,}  {by.tid} {printable(by.comm)}")
        for by in site.threads[:_THREADS]
    ]
    left = len(site.threads) - _THREADS
    more = [Text(f"{'':>10} … {left} more", "dim")] if left > 0 else []
    return [Text("allocated by threads", "bold"), *rows, *more, Text()]
