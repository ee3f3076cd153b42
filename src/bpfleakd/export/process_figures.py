"""What is exported of processes: name, unit, meaning, and where each figure comes from."""

from __future__ import annotations

from dataclasses import dataclass

from bpfleakd.export.figures import Counter, Gauge
from bpfleakd.model.managed import ManagedHeap
from bpfleakd.model.metrics import ProcessUsage
from bpfleakd.model.process import ProcessRow
from bpfleakd.model.verdict import ProcessVerdict
from bpfleakd.table.estimates import stderr_of_sum

__all__ = ["PROCESS_COUNTERS", "PROCESS_GAUGES", "ExportedProcess"]


@dataclass(frozen=True, slots=True)
class ExportedProcess:
    """A traced process with what /proc says of it (None once it is gone), the verdict on it, if any, and its
    managed heap, if a runtime tells of it."""

    traced: ProcessRow
    usage: ProcessUsage | None
    verdict: ProcessVerdict | None
    managed: ManagedHeap | None = None


def _room_bytes(row: ExportedProcess) -> float | None:
    limit = row.verdict.limit if row.verdict else None
    return None if limit is None else max(0, limit.limit_bytes - limit.used_bytes)


PROCESS_GAUGES: tuple[Gauge[ExportedProcess], ...] = (
    Gauge(
        "traced",
        "",
        "How many processes with these labels are traced; 0: the figures are those of the last time.",
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
        "The most bytes that were live at once since attach; of several processes, at most.",
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
        "How many processes with these labels leak: one of their call sites does.",
        lambda row: row.verdict.verdict == "leak" if row.verdict else None,
    ),
    Gauge(
        "leak_bytes_per_second",
        "bytes_per_second",
        "What the call sites that leak gain for good, together.",
        lambda row: row.verdict.leak_bytes_per_s if row.verdict else None,
    ),
    Gauge(
        "memory_growth_bytes_per_second",
        "bytes_per_second",
        "Trend of the anonymous memory, as far as it can be told.",
        lambda row: row.verdict.memory_bytes_per_s if row.verdict else None,
    ),
    Gauge(
        "explained_ratio",
        "ratio",
        "The part of the growth of the memory, 0 to 1, that call sites gain which leak or grow.",
        lambda row: row.verdict.explained_share if row.verdict else None,
        min,
    ),
    Gauge(
        "memory_room_bytes",
        "bytes",
        "What is left of the limit with the least room: of a control group, of the process, of the machine.",
        _room_bytes,
        min,
    ),
    Gauge(
        "limit_reached_seconds",
        "seconds",
        "When that limit is reached at this growth; none if that is not to be foreseen.",
        lambda row: row.verdict.limit_reached_s if row.verdict else None,
        min,
    ),
    Gauge(
        "anonymous_bytes",
        "bytes",
        "Anonymous memory that is resident or swapped out, as /proc says: what live bytes are to explain.",
        lambda row: row.usage.anonymous_bytes if row.usage else None,
    ),
    Gauge(
        "managed_live_bytes",
        "bytes",
        "What the last collection of the managed heap left alive (.NET); none before the first.",
        lambda row: row.managed.live_bytes if row.managed else None,
    ),
    Gauge(
        "threads",
        "",
        "Threads.",
        lambda row: row.usage.threads if row.usage else None,
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
        "How many processes with these labels are not traced as they should be, since that costs too much.",
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
        "Daemons that took the process over from one that had ended.",
        lambda row: row.traced.adopted_count,
    ),
    Gauge(
        "gap_seconds",
        "seconds",
        "Time without a daemon: the programs counted on, but new libraries were not probed.",
        lambda row: row.traced.gap_s,
    ),
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
        "Frees of blocks whose allocation was not seen: most are from before the attach.",
        lambda row: row.traced.process.unmatched_frees,
    ),
    Counter(
        "probe_hits",
        "",
        "How often the process ran into a probe: what tracing costs it, in units of about 0.5 us.",
        lambda row: row.traced.probe_hits,
    ),
    Counter(
        "losses",
        "",
        "What was missed, for any reason: the other figures do not include it.",
        lambda row: sum(row.traced.losses.values()),
    ),
)
