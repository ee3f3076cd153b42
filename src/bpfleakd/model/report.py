"""Outstanding memory of a process by call site, as shown, stored, and given to profile viewers."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from bpfleakd.model.code.mapping import CodeMapping
from bpfleakd.model.code.stack import Frame, StackEnd
from bpfleakd.model.oom import OomKill
from bpfleakd.model.process import ProcessSummary
from bpfleakd.model.resources import DescriptorSite, DescriptorTotals, ResourceUse
from bpfleakd.model.runtimes.goroutines import GoroutineGroup
from bpfleakd.model.runtimes.managed import ManagedHeap, TypeFigures
from bpfleakd.model.site import AllocationKind, ThreadShare
from bpfleakd.model.verdict import ProcessVerdict, Verdict


class SortKey(StrEnum):
    """The order of sites, largest first. VERDICT: leaks, then growing sites, the fastest first."""

    VERDICT = "verdict"
    GROWTH = "growth"
    LIVE = "live"
    COUNT = "count"


class BlockType(Struct, frozen=True):
    """A class whose objects are in the blocks of a call site.

    A `share` (0 to 1) of the blocks contains one, estimated from a sample in which `sampled_count` do. The
    objects begin `offset_bytes` after their blocks' beginning if they are parts of something else.
    """

    type: str
    share: float
    offset_bytes: int
    sampled_count: int


class SiteReport(Struct, frozen=True):
    """One call site of a report. `site` is the fingerprint of the stack, stable between runs.

    `temporary_count` is None for kinds other than HEAP. `verdict` to `leak_bytes_per_s` are as in
    SiteVerdict. `reachable` is whether something in the process still points to its blocks, found by a scan
    `scanned_age_s` ago; None if some are lost and some are not, or without a scan. `live_bytes_stderr` and
    `live_count_stderr` are the standard errors of live figures, 0.0 if every block was recorded. `type` is
    the type of most objects of a site of kind MANAGED, whose counts come from samples; `types` are classes of
    C++ that a site of kind HEAP allocates, the most frequent first. `function_start` is that of the charged
    frame. `called_by` is the program's own function that called the charged one, if that is of an installed
    library or package.
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
    types: tuple[BlockType, ...] = ()
    function_start: int | None = None
    called_by: Frame | None = None


class SuppressedSites(Struct, frozen=True):
    """The number of call sites that a pattern suppresses, and their live bytes."""

    sites: int
    live_bytes: int
    live_count: int


class LeakReport(Struct, frozen=True):
    """The outstanding memory of a process: `sites` sorted, largest first.

    Suppressed sites are in the totals, not in `sites`, and by pattern in `suppressed`. `build_ids` are those
    of the files in the stacks, in hex; files without one are missing. `managed` is the managed heap, whose
    memory belongs to call sites of kind COMMIT; `types` the known types of its live objects, most bytes
    first. `goroutines` are those of a Go program, by the place that started them; `resources` its file
    descriptors and threads. While descriptors are recorded, `descriptor_sites` are the call sites with open
    ones, and `descriptor_totals` has also those of no call site. `oom` is present if the kernel killed the
    process because memory had run out. `names_pending`: a later report has more names of functions.
    """

    process: ProcessSummary
    sites: tuple[SiteReport, ...]
    losses: dict[str, int]
    process_verdict: ProcessVerdict | None = None
    suppressed: dict[str, SuppressedSites] = msgspec.field(default_factory=dict)
    build_ids: dict[str, str] = msgspec.field(default_factory=dict)
    managed: ManagedHeap | None = None
    types: tuple[TypeFigures, ...] = ()
    goroutines: tuple[GoroutineGroup, ...] = ()
    resources: tuple[ResourceUse, ...] = ()
    descriptor_sites: tuple[DescriptorSite, ...] = ()
    descriptor_totals: DescriptorTotals | None = None
    oom: OomKill | None = None
    names_pending: bool = False


class AwaitedVerdicts(Struct, frozen=True):
    """The result of `attach --wait`: the worst verdict on a process, its exit code, and all the reports."""

    verdict: Verdict
    exit_code: int
    reports: tuple[LeakReport, ...]


class HeapProfile(Struct, frozen=True):
    """All outstanding memory of a process, with the data that profile viewers need about it.

    `time_s` is when it was taken, in seconds since the Epoch; `mappings` are in order of address.
    """

    time_s: float
    report: LeakReport
    mappings: tuple[CodeMapping, ...]


class StoredReportEntry(Struct, frozen=True):
    """A stored report: its process and its totals. `kept_s` is the time of day (Unix).

    `state` is how the process, or its tracing, ended; `sites` are those it had, of which the report has the
    largest.
    """

    id: int
    kept_s: float
    pid: int
    start_ticks: int
    comm: str
    exe: str
    state: str
    live_bytes: int
    live_count: int
    growth_bytes_per_s: float
    sites: int


class StoredReport(Struct, frozen=True):
    """A complete stored report."""

    kept: StoredReportEntry
    report: LeakReport
