"""What is outstanding in a process, by call site."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bpfleakd.model.goroutines import GoroutineGroup
from bpfleakd.model.managed import ManagedHeap, TypeFigures
from bpfleakd.model.process import ProcessSummary
from bpfleakd.model.site import AllocationKind, ThreadShare
from bpfleakd.model.stack import Frame, StackEnd
from bpfleakd.model.verdict import ProcessVerdict, Verdict

__all__ = ["LeakReport", "SiteReport", "SortKey", "SuppressedSites"]


class SortKey(StrEnum):
    """What sites are sorted by, largest first. VERDICT: leaks, then what grows, the fastest first."""

    VERDICT = "verdict"
    GROWTH = "growth"
    LIVE = "live"
    COUNT = "count"


@dataclass(frozen=True, slots=True)
class SiteReport:
    """One call site as it is shown. `site` is the fingerprint of the stack, stable between runs.

    `temporary_count` is None for memory that is not the heap's. `verdict` to `leak_bytes_per_s` are as in
    SiteVerdict. `reachable` is whether something in the process still points to its blocks, as a scan
    `scanned_age_s` ago has found; None if some are lost and some are not, or if nobody has looked.
    `live_bytes_stderr` and `live_count_stderr`
    are the standard errors of what is live, 0.0 where every block was recorded. `type` is that of most of the
    objects of a site of kind MANAGED, whose counts are of samples.
    """

    site: str
    kind: AllocationKind
    function: str | None
    module: str | None
    location: str | None
    live_bytes: int
    live_count: int
    allocated_bytes: int
    allocated_count: int
    growth_bytes_per_s: float
    oldest_age_s: float | None
    threads: tuple[ThreadShare, ...]
    stack: tuple[Frame, ...]
    truncated: StackEnd | None
    temporary_count: int | None
    peak_live_bytes: int
    verdict: Verdict
    confidence: float
    reason: str
    leak_bytes_per_s: float
    reachable: bool | None
    live_bytes_stderr: float = 0.0
    live_count_stderr: float = 0.0
    scanned_age_s: float | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class SuppressedSites:
    """How many call sites a pattern suppresses, and what is live in them."""

    sites: int
    live_bytes: int
    live_count: int


@dataclass(frozen=True, slots=True)
class LeakReport:
    """The answer to "what is outstanding in this process": `sites` sorted, largest first.

    Sites that a suppression fits are in the totals, not in `sites`, and by the pattern in `suppressed`.
    `build_ids` are those of the files in the stacks, in hex; a file without one is not there. `managed` is
    the managed heap, whose memory call sites of kind COMMIT have; `types` what is known to live there, most
    bytes first. `goroutines` are those of a Go program, by where they were started.
    """

    process: ProcessSummary
    sites: tuple[SiteReport, ...]
    losses: dict[str, int]
    process_verdict: ProcessVerdict | None = None
    suppressed: dict[str, SuppressedSites] = field(default_factory=dict)
    build_ids: dict[str, str] = field(default_factory=dict)
    managed: ManagedHeap | None = None
    types: tuple[TypeFigures, ...] = ()
    goroutines: tuple[GoroutineGroup, ...] = ()
