"""The view of `bpfleakctl analyze`: the process, and a line a call site with the reason under it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from bpfleakd.cli.render.names import readable_function
from bpfleakd.cli.render.process_verdict import verdict_lines
from bpfleakd.model.history import StoredHistory, StoredSite
from bpfleakd.model.verdict import ProcessVerdict, SiteVerdict
from bpfleakd.printable import printable, shortened
from bpfleakd.units import human_bytes, human_duration, human_rate

__all__ = ["analyzed_view"]


def analyzed_view(
    history: StoredHistory,
    process: ProcessVerdict,
    sites: Sequence[tuple[StoredSite, SiteVerdict]],
    *,
    width: int | None,
) -> RenderableType:
    """Return the lines, cut to `width` (None: as wide as it gets)."""
    observed = human_duration(history.ends_s[-1] if history.ends_s else 0.0)
    lines = [f"{printable(history.comm)}  observed for {observed}", *verdict_lines(process)]
    lines.append(f"{'verdict':8}{'leaks':>11} {'live':>8} function")
    for site, verdict in sites:
        rate = human_rate(verdict.leak_bytes_per_s) if verdict.leak_bytes_per_s else "-"
        name = readable_function(site.function) if site.function else "[unknown]"
        lines.append(f"{verdict.verdict:8}{rate:>11} {human_bytes(site.live_bytes):>8} {name}")
        lines.append(f"  {verdict.confidence:.0%} sure: {printable(verdict.reason)}")
    return Group(*(Text(line if width is None else shortened(line, width)) for line in lines))
