"""Exported figures of processes: name, unit, meaning, and source."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from bpfleakd.export.figures import Counter, Gauge
from bpfleakd.model.address_space import BillKind, BillLine
from bpfleakd.model.metrics import ProcessUsage
from bpfleakd.model.process import ProcessRow
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.verdict import ProcessVerdict
from bpfleakd.table.estimates import stderr_of_sum


class ExportedProcess(Struct, frozen=True):
    """A traced process with its exported data.

    Its figures from /proc (None after its end), its verdict, if any, its managed heap, if a runtime reports
    it, and its number of goroutines, if it is a Go program.
    """

    traced: ProcessRow
    usage: ProcessUsage | None
    verdict: ProcessVerdict | None
    managed: ManagedHeap | None = None
    goroutines: int | None = None
    bill: tuple[BillLine, ...] = ()


def _room_bytes(row: ExportedProcess) -> float | None:
    limit = row.verdict.limit if row.verdict else None
    return None if limit is None else max(0, limit.limit_bytes - limit.used_bytes)


def _bill_bytes(kind: BillKind, row: ExportedProcess) -> float | None:
    return next((line.bytes for line in row.bill if line.kind is kind), None)


PROCESS_GAUGES: tuple[Gauge[ExportedProcess], ...] = (
    Gauge(
        "traced",
        "",
        "Traced processes with these labels; at 0, the figures are the last known ones.",
        lambda row: row.traced.process.state == "traced",
    ),
    Gauge(
        "live_bytes",
        "bytes",
        "Bytes allocated since attach and not freed yet.",
        lambda row: row.traced.process.live_bytes,
    ),
    Gauge(
        "live_allocations",
        "",
        "Blocks allocated since attach and not freed yet.",
        lambda row: row.traced.process.live_count,
    ),
    Gauge(
        "live_stderr_bytes",
        "bytes",
        "Standard error of the live bytes; 0 where every block is recorded.",
        lambda row: row.traced.process.live_bytes_stderr,
        stderr_of_sum,
    ),
    Gauge(
        "peak_live_bytes",
        "bytes",
        "Peak of the live bytes since attach; an upper bound for several processes.",
        lambda row: row.traced.process.peak_live_bytes,
    ),
    Gauge(
        "growth_bytes_per_second",
        "bytes_per_second",
        "Change of the live bytes over the history window.",
        lambda row: row.traced.process.growth_bytes_per_s,
    ),
    Gauge(
        "leaks",
        "",
        "Processes with these labels that leak.",
        lambda row: row.verdict.verdict == "leak" if row.verdict else None,
    ),
    Gauge(
        "leak_bytes_per_second",
        "bytes_per_second",
        "Bytes per second that all leaking call sites permanently retain.",
        lambda row: row.verdict.leak_bytes_per_s if row.verdict else None,
    ),
    Gauge(
        "memory_growth_bytes_per_second",
        "bytes_per_second",
        "Trend of the anonymous memory.",
        lambda row: row.verdict.memory_bytes_per_s if row.verdict else None,
    ),
    Gauge(
        "explained_ratio",
        "ratio",
        "Share of the memory's growth, 0 to 1, in call sites that leak or grow.",
        lambda row: row.verdict.explained_share if row.verdict else None,
        min,
    ),
    Gauge(
        "memory_room_bytes",
        "bytes",
        "Bytes left below the nearest memory limit: control group, rlimit or machine.",
        _room_bytes,
        min,
    ),
    Gauge(
        "limit_reached_seconds",
        "seconds",
        "Seconds until that limit is reached at this growth; absent if that cannot be predicted.",
        lambda row: row.verdict.limit_reached_s if row.verdict else None,
        min,
    ),
    Gauge(
        "anonymous_bytes",
        "bytes",
        "Anonymous memory, resident or swapped, from /proc: the memory that live bytes explain.",
        lambda row: row.usage.anonymous_bytes if row.usage else None,
    ),
    Gauge(
        "managed_live_bytes",
        "bytes",
        "Bytes that survived the last collection of the managed heap; absent before the first.",
        lambda row: row.managed.live_bytes if row.managed else None,
    ),
    Gauge(
        "goroutines",
        "",
        "Goroutines of Go programs.",
        lambda row: row.goroutines,
    ),
    Gauge(
        "threads",
        "",
        "Threads.",
        lambda row: row.usage.threads if row.usage else None,
    ),
    Gauge(
        "descriptors",
        "",
        "Open file descriptors.",
        lambda row: row.usage.descriptors if row.usage else None,
    ),
    Gauge(
        "tracing_cores",
        "",
        "Processor time that tracing costs the process: 1 is a core.",
        lambda row: row.traced.load_percent / 100,
    ),
    Gauge(
        "limited",
        "",
        "Processes with these labels whose tracing is limited by a budget.",
        lambda row: row.traced.limited != "",
    ),
    Gauge(
        "sites",
        "",
        "Call sites seen since attach.",
        lambda row: row.traced.sites,
    ),
    Gauge(
        "adoptions",
        "",
        "Number of times a new daemon adopted the process.",
        lambda row: row.traced.adopted_count,
    ),
    Gauge(
        "gap_seconds",
        "seconds",
        "Time without a daemon: counting continued, but new libraries were not probed.",
        lambda row: row.traced.gap_s,
    ),
)

# By kind: together they form one metric with a label for it.
BILL_GAUGES: tuple[Gauge[ExportedProcess], ...] = tuple(
    Gauge(kind.value, "bytes", "", partial(_bill_bytes, kind)) for kind in BillKind
)

PROCESS_COUNTERS: tuple[Counter[ExportedProcess], ...] = (
    Counter(
        "allocated_bytes",
        "bytes",
        "Bytes allocated.",
        lambda row: row.traced.process.allocated_bytes,
    ),
    Counter(
        "allocations",
        "",
        "Blocks allocated.",
        lambda row: row.traced.process.allocated_count,
    ),
    Counter(
        "frees",
        "",
        "Blocks freed.",
        lambda row: row.traced.process.freed_count,
    ),
    Counter(
        "unmatched_frees",
        "",
        "Frees of unknown blocks, mostly allocated before the attach.",
        lambda row: row.traced.process.unmatched_frees,
    ),
    Counter(
        "probe_hits",
        "",
        "Probe hits of the process, about 0.5 us each.",
        lambda row: row.traced.probe_hits,
    ),
    Counter(
        "losses",
        "",
        "Events missed, for any reason; not included in other figures.",
        lambda row: sum(row.traced.losses.values()),
    ),
)
