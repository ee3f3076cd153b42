"""Exported figures of call sites: name, unit, meaning, and source."""

from __future__ import annotations

from bpfleakd.export.figures import Counter, Gauge
from bpfleakd.model.report import SiteReport
from bpfleakd.table.estimates import stderr_of_sum

SITE_GAUGES: tuple[Gauge[SiteReport], ...] = (
    Gauge(
        "live_bytes",
        "bytes",
        "Bytes allocated at this call site and not freed yet.",
        lambda site: site.live_bytes,
    ),
    Gauge(
        "live_allocations",
        "",
        "Blocks allocated at this call site and not freed yet.",
        lambda site: site.live_count,
    ),
    Gauge(
        "live_stderr_bytes",
        "bytes",
        "Standard error of this call site's live bytes; 0 where every block is recorded.",
        lambda site: site.live_bytes_stderr,
        stderr_of_sum,
    ),
    Gauge(
        "growth_bytes_per_second",
        "bytes_per_second",
        "Change of this call site's live bytes over the history window.",
        lambda site: site.growth_bytes_per_s,
    ),
    Gauge(
        "leak_bytes_per_second",
        "bytes_per_second",
        "Bytes per second this call site permanently retains; 0 unless its verdict is leak or growing.",
        lambda site: site.leak_bytes_per_s,
    ),
)

SITE_COUNTERS: tuple[Counter[SiteReport], ...] = (
    Counter(
        "allocated_bytes",
        "bytes",
        "Bytes allocated at this call site.",
        lambda site: site.allocated_bytes,
    ),
    Counter(
        "allocations",
        "",
        "Blocks allocated at this call site.",
        lambda site: site.allocated_count,
    ),
)
