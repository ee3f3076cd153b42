"""The nouns: what is passed between the kernel side, the tables, the analysis and the exporters.

Everything here is a frozen value without behaviour beyond its own fields. Sizes are bytes, times are
seconds (`_s`) or CLOCK_MONOTONIC nanoseconds (`_ns`), addresses are virtual addresses in the target.

`LeakReport` and what hangs on it is the contract of `bpfleakctl top --json` and of the HTTP API: its
field names are the JSON names (docs/json.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "AddressSpaceReport",
    "AllocationKind",
    "BlockReport",
    "BlocksReport",
    "Check",
    "CheckStatus",
    "CodeMapping",
    "ComparedState",
    "DaemonStats",
    "DiffReport",
    "Frame",
    "FrameKind",
    "FunctionRole",
    "GroupKey",
    "GroupedReport",
    "GuardStats",
    "HeapProfile",
    "JitModule",
    "KeptReport",
    "LeakReport",
    "LifeChange",
    "LifeEvent",
    "LifeStats",
    "Mapping",
    "MappingUsage",
    "MemoryLimit",
    "MemoryLimitKind",
    "MemoryShares",
    "MemoryStatus",
    "MemoryUse",
    "MetricLabel",
    "MetricsSnapshot",
    "ProbedFunction",
    "ProcessId",
    "ProcessLabels",
    "ProcessState",
    "ProcessSummary",
    "ProcessUsage",
    "ProcessVerdict",
    "RawStack",
    "Reachability",
    "ReachabilitySums",
    "SavedHistory",
    "SavedReport",
    "SavedSite",
    "ScanCaveat",
    "ScanMethod",
    "ScanReport",
    "ScannedBlock",
    "ScannedSite",
    "SiteBlocks",
    "SiteChange",
    "SiteCounters",
    "SiteDifference",
    "SiteGroup",
    "SiteKey",
    "SiteReport",
    "SiteVerdict",
    "SortKey",
    "Stack",
    "StackEnd",
    "SupervisedProcess",
    "SupervisionState",
    "SuppressedSites",
    "ThreadShare",
    "TracedProcess",
    "TracingMode",
    "UseSummary",
    "Verdict",
    "WatchState",
    "WatchSummary",
    "WatchedProcess",
]


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process: its pid and its start time, since pids are used again.

    `start_ticks` is field 22 of /proc/PID/stat, in clock ticks since boot.
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """A line of /proc/PID/maps. `path` is as the target sees it, "" for anonymous memory.

    `offset` is the file offset of `start`; (`device`, `inode`) identify the file; `deleted` files have no
    name any more but can be opened through /proc/PID/map_files. `shared`: what is written reaches the file.
    """

    start: int
    end: int
    offset: int
    device: str
    inode: int
    path: str
    readable: bool
    writable: bool
    executable: bool
    deleted: bool = False
    shared: bool = False


class AllocationKind(StrEnum):
    """Where outstanding memory came from.

    HEAP is from an allocator. The others are of the address space: MMAP is anonymous memory that the program
    mapped (or its break), COMMIT is reserved memory made accessible, THREAD_STACK was mapped as a stack, FILE
    is backed by a file.
    """

    HEAP = "heap"
    MMAP = "mmap"
    COMMIT = "commit"
    THREAD_STACK = "thread-stack"
    FILE = "file"


class FrameKind(StrEnum):
    """How an address got its name."""

    NATIVE = "native"
    JIT = "jit"
    VDSO = "vdso"
    UNKNOWN = "unknown"


class StackEnd(StrEnum):
    """Why the walk of a stack ended. Only BOTTOM is a whole stack."""

    BOTTOM = "bottom"
    DEPTH = "depth"
    READ_FAULT = "read-fault"
    NO_RULE = "no-rule"
    FRAME_POINTER_END = "frame-pointer-end"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class RawStack:
    """A stack as the kernel side recorded it, innermost first.

    `addresses[0]` is the probed allocator function itself (an exact program counter); the others are
    return addresses, so that the call is at `address - 1`.
    """

    addresses: tuple[int, ...]
    end: StackEnd


@dataclass(frozen=True, slots=True)
class Frame:
    """One named frame.

    `offset` is the virtual address inside the ELF file (what addr2line takes), None outside files.
    `location` is "file:line" or None. `inlined` frames share the address of the frame that holds them.
    """

    function: str | None
    module: str | None
    offset: int | None
    location: str | None
    address: int
    kind: FrameKind
    inlined: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """A named stack, innermost frame first.

    `build_ids` holds, frame by frame, the build-id of the frame's file (hex) or None; the fingerprint
    is made of it. `truncated` is None for a stack that reaches the thread's first function.
    """

    frames: tuple[Frame, ...]
    build_ids: tuple[str | None, ...]
    truncated: StackEnd | None


@dataclass(frozen=True, slots=True)
class SiteKey:
    """A call site of one process: allocation kind and stack (`stack_id` is the hash of its frames)."""

    kind: AllocationKind
    stack_id: int


@dataclass(frozen=True, slots=True)
class SiteCounters:
    """The running totals of one call site since attach; estimates, where blocks are sampled.

    `temporary_count` are the blocks that their thread freed before it allocated another. The variances of the
    estimates of what is live are in units of 2^16 bytes^2 and of 2^-16 blocks^2 (analysis/estimates.py).
    """

    live_bytes: int
    live_count: int
    allocated_bytes: int
    allocated_count: int
    temporary_count: int = 0
    peak_live_bytes: int = 0
    live_bytes_variance: int = 0
    live_count_variance: int = 0


@dataclass(frozen=True, slots=True)
class ThreadShare:
    """What one thread allocated and nobody has freed yet."""

    tid: int
    comm: str
    live_bytes: int
    live_count: int


class Verdict(StrEnum):
    """What becomes of the memory of a call site.

    LEAK grows persistently, and what is old stays. GROWING may become one: it is too early, or may be a cache
    that fills. PLATEAU grew and stopped. STEADY neither takes nor gives back, CHURN does both. UNKNOWN is
    too little, or too much was missed.
    """

    LEAK = "leak"
    GROWING = "growing"
    PLATEAU = "plateau"
    STEADY = "steady"
    CHURN = "churn"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SiteVerdict:
    """A verdict on a call site, the evidence for it from 0 to 1, and why, in words.

    `leak_bytes_per_s` is what it gains for good, if it is a leak or may become one, else 0.
    """

    verdict: Verdict
    confidence: float
    reason: str
    leak_bytes_per_s: float


class MemoryLimitKind(StrEnum):
    """Who limits the memory of a process: its control groups, RLIMIT_AS, RLIMIT_DATA, or the machine."""

    CGROUP = "cgroup"
    ADDRESS_SPACE = "address-space"
    DATA = "data"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit, and what is used of it."""

    kind: MemoryLimitKind
    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessVerdict:
    """Whether a process leaks, and why it is thought so, in words.

    `leak_bytes_per_s` is what its call sites leak together. `memory_bytes_per_s` is how fast its anonymous
    memory grows, between `_low` and `_high` with 95 % confidence; None while that cannot be told.
    `explained_share`, 0 to 1, is what the call sites that leak or grow gain of that; None if it does not
    grow. `limit` is the one with the least room, `limit_reached_s` when it is used up at this rate; None if
    that is not to be foreseen.
    """

    verdict: Verdict
    reason: str
    leak_bytes_per_s: float
    memory_bytes_per_s: float | None
    memory_bytes_per_s_low: float | None
    memory_bytes_per_s_high: float | None
    explained_share: float | None
    limit: MemoryLimit | None
    limit_reached_s: float | None


@dataclass(frozen=True, slots=True)
class SavedSite:
    """One call site: the least that was live in each bin, what was born in it, and what of that lives."""

    site: str
    kind: AllocationKind
    function: str | None
    module: str | None
    live_bytes: int
    live_count: int
    low_bytes: tuple[float, ...]
    low_count: tuple[float, ...]
    born_count: tuple[float, ...]
    survivors_count: tuple[float, ...]
    survivors_bytes: tuple[float, ...]
    weight: float = 1.0
    suppressed: bool = False


@dataclass(frozen=True, slots=True)
class SavedHistory:
    """What the verdicts on a process are made of, to be judged elsewhere.

    Bins of time end at `ends_s`, in seconds since the attach; each begins where the one before ends.
    `replaced_count` to `lost_blocks` are as in analysis.verdict.Context. Anonymous memory was at least
    `memory_bytes` in the bins that end at `memory_s`.
    """

    version: int
    comm: str
    leak_after_s: float
    replaced_count: float
    lost_frees: int
    lost_blocks: int
    ends_s: tuple[float, ...]
    memory_s: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    limits: tuple[MemoryLimit, ...]
    sites: tuple[SavedSite, ...]


@dataclass(frozen=True, slots=True)
class SiteReport:
    """One call site as it is shown. `site` is the fingerprint of the stack, stable between runs.

    `temporary_count` is None for memory that is not the heap's. `verdict` to `leak_bytes_per_s` are as in
    SiteVerdict. `reachable` is whether something in the process still points to its blocks; None if nobody
    has looked.
    `live_bytes_stderr` and `live_count_stderr`
    are the standard errors of what is live, 0.0 where every block was recorded.
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


class TracingMode(StrEnum):
    """How closely a process is looked at, and what that costs it.

    OFF is never touched. WATCH samples its memory from /proc and never attaches. AUTO does so until the
    memory grows, and then attaches for a while. SAMPLED records a share of the bytes allocated, EXACT every
    call.
    """

    OFF = "off"
    WATCH = "watch"
    AUTO = "auto"
    SAMPLED = "sampled"
    EXACT = "exact"


class ProcessState(StrEnum):
    """The life of a traced process."""

    TRACED = "traced"
    EXITED = "exited"
    EXECED = "execed"
    DETACHED = "detached"


class LifeChange(StrEnum):
    """What happened to a process. GAP is of no process: events were missed, and all have to be looked at.

    CHANGED is another name or user: rules may decide otherwise.
    """

    FORK = "fork"
    EXEC = "exec"
    CHANGED = "changed"
    EXIT = "exit"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """A change in the life of process `pid`; `parent_pid` is known of a FORK, and 0 otherwise."""

    change: LifeChange
    pid: int = 0
    parent_pid: int = 0


class SupervisionState(StrEnum):
    """What is being done with a process of this host.

    DECIDING: it has just started, or executed something. OFF: nothing, by the policy. WATCHED: its memory is
    sampled from /proc. ATTACHING: about to be traced. TRACED. WAITING: it should be traced, but a limit was
    reached. REFUSED: it should be traced, but cannot be. DETACHED: somebody detached it by hand.
    """

    DECIDING = "deciding"
    OFF = "off"
    WATCHED = "watched"
    ATTACHING = "attaching"
    TRACED = "traced"
    WAITING = "waiting"
    REFUSED = "refused"
    DETACHED = "detached"


@dataclass(frozen=True, slots=True)
class ProcessLabels:
    """What a process belongs to; None where there is no such thing.

    `unit` is the innermost systemd unit, `container` the container's id (64 hexadecimal digits), `pod` the
    Kubernetes pod's uid.
    """

    user: str | None = None
    cgroup: str | None = None
    unit: str | None = None
    container: str | None = None
    pod: str | None = None


@dataclass(frozen=True, slots=True)
class SupervisedProcess:
    """A process of this host, what the policy says of it and what is done with it.

    `rule` is what decided: "rule 2", "default", "by hand", or what excludes it. `reason` is why it is in this
    state, "" if that says it all.
    """

    pid: int
    comm: str
    mode: TracingMode
    state: SupervisionState
    rule: str
    reason: str
    labels: ProcessLabels


@dataclass(frozen=True, slots=True)
class LifeStats:
    """How processes are noticed, and what became of them.

    `source` is "events" (the kernel tells) or "scan" (/proc is read, more slowly). `gaps_total` is how often
    events were missed, `short_lived_total` how many processes ended before they were looked at,
    `refused_total` by error code. `by_state` is of processes now.
    """

    source: str = "none"
    events_total: int = 0
    gaps_total: int = 0
    rescans_total: int = 0
    short_lived_total: int = 0
    refused_total: dict[str, int] = field(default_factory=dict)
    by_state: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessSummary:
    """One traced process in totals. `unmatched_frees` were of blocks from before the attach.

    `mode` is EXACT if every block since the attach was recorded, otherwise SAMPLED: then the figures of the
    heap are estimates, with their standard errors. One block in about `sample_interval_bytes` is recorded
    now; None: all are.
    """

    pid: int
    comm: str
    exe: str
    live_bytes: int
    live_count: int
    attached_s: float
    mode: str
    state: ProcessState
    allocated_bytes: int
    allocated_count: int
    freed_count: int
    unmatched_frees: int
    growth_bytes_per_s: float
    temporary_count: int
    peak_live_bytes: int
    labels: ProcessLabels = ProcessLabels()
    sample_interval_bytes: int | None = None
    live_bytes_stderr: float = 0.0
    live_count_stderr: float = 0.0


class FunctionRole(StrEnum):
    """What a probed function does with its arguments, and so what the BPF program does."""

    SIZE_FIRST = "size-first"
    SIZE_SECOND = "size-second"
    CALLOC = "calloc"
    REALLOC = "realloc"
    POSIX_MEMALIGN = "posix-memalign"
    RELEASE = "release"
    LIBRARIES_CHANGED = "libraries-changed"
    REALLOC_ARRAY = "realloc-array"
    REALLOC_OR_FREE = "realloc-or-free"
    RESIZE = "resize"
    STRDUP = "strdup"


@dataclass(frozen=True, slots=True)
class ProbedFunction:
    """One allocator function under a probe.

    `offset` is the file offset of the breakpoint in `module`. The kernel emulates the instruction there
    if `emulated`; otherwise a hit costs about ten times as much.
    """

    allocator: str
    function: str
    role: FunctionRole
    module: str
    offset: int
    emulated: bool


@dataclass(frozen=True, slots=True)
class TracedProcess:
    """A row of `bpfleakctl ps`: the totals, how it is attached and what was missed.

    `probe_hits` is how often the process ran into a program of ours, `load_percent` what that costs it, in
    percent of a core. `adopted_count` daemons took it over from one that had ended; `gap_s` is how long it
    was without any, in all. `limited` is why it is not traced as it should be, or "".
    """

    process: ProcessSummary
    attach_method: str
    sites: int
    probes: tuple[ProbedFunction, ...]
    losses: dict[str, int] = field(default_factory=dict)
    probe_hits: int = 0
    adopted_count: int = 0
    gap_s: float = 0.0
    load_percent: float = 0.0
    limited: str = ""


class SortKey(StrEnum):
    """What sites are sorted by, largest first. VERDICT: leaks, then what grows, the fastest first."""

    VERDICT = "verdict"
    GROWTH = "growth"
    LIVE = "live"
    COUNT = "count"


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
    """

    process: ProcessSummary
    sites: tuple[SiteReport, ...]
    losses: dict[str, int]
    process_verdict: ProcessVerdict | None = None
    suppressed: dict[str, SuppressedSites] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CodeMapping:
    """Executable memory of a file. `build_id` is in hex; None for a file without one."""

    start: int
    end: int
    offset: int
    path: str
    build_id: str | None


@dataclass(frozen=True, slots=True)
class HeapProfile:
    """All that is outstanding in a process, and what profile viewers want to know beside it.

    `time_s` is when it was taken, in seconds since the Epoch; `mappings` are in order of address.
    """

    time_s: float
    report: LeakReport
    mappings: tuple[CodeMapping, ...]


class SiteChange(StrEnum):
    """What became of a call site between two reports."""

    NEW = "new"
    GROWN = "grown"
    SHRUNK = "shrunk"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class SiteDifference:
    """One call site that changed: what was live before and after. The rest is of the later report."""

    site: str
    kind: AllocationKind
    change: SiteChange
    function: str | None
    module: str | None
    location: str | None
    before_bytes: int
    before_count: int
    after_bytes: int
    after_count: int
    stack: tuple[Frame, ...]
    truncated: StackEnd | None


@dataclass(frozen=True, slots=True)
class ComparedState:
    """One side of a comparison: a process as it was, `source` says when ("10m ago"), or where that was saved.

    What is kept of the past is the least of each call site within `resolution_s`; 0: figures of one moment.
    `left_out_bytes` are live in the process, but in no call site that is compared.
    """

    source: str
    pid: int
    comm: str
    exe: str
    mode: str
    attached_s: float
    live_bytes: int
    live_count: int
    left_out_bytes: int
    resolution_s: float


@dataclass(frozen=True, slots=True)
class DiffReport:
    """Two states compared: `sites` that changed, what gained most first.

    `left_out_sites` more changed by less than those that are listed, or are suppressed.
    """

    before: ComparedState
    after: ComparedState
    unchanged_count: int
    left_out_sites: int
    sites: tuple[SiteDifference, ...]


@dataclass(frozen=True, slots=True)
class KeptReport:
    """A report that is remembered: of which process, and its totals. `kept_s` is the time of day (Unix).

    `state` is how the process, or its tracing, ended; `sites` are those that are kept, the largest.
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


@dataclass(frozen=True, slots=True)
class SavedReport:
    """A report that is remembered, whole."""

    kept: KeptReport
    report: LeakReport


class GroupKey(StrEnum):
    """What call sites are put together by. SITE and STACK are the same, the second shown with its frames."""

    SITE = "site"
    FUNCTION = "function"
    MODULE = "module"
    THREAD = "thread"
    STACK = "stack"


@dataclass(frozen=True, slots=True)
class SiteGroup:
    """Call sites that have something in common; `sites` are their fingerprints.

    The standard errors are 0.0 where every block was recorded, and not known of threads.

    `group` is the function, the module, the tid in digits or the fingerprint; None holds what has none. Who
    freed and grew is not known of threads, so that they only have live figures. `comm` is a thread's name,
    `stack` the frames of a stack.
    """

    group: str | None
    live_bytes: int
    live_count: int
    allocated_bytes: int | None
    allocated_count: int | None
    growth_bytes_per_s: float | None
    sites: tuple[str, ...]
    comm: str | None = None
    stack: tuple[Frame, ...] = ()
    truncated: StackEnd | None = None
    live_bytes_stderr: float | None = None
    live_count_stderr: float | None = None


@dataclass(frozen=True, slots=True)
class GroupedReport:
    """All call sites of a process in groups, largest first; but those that are `suppressed`."""

    process: ProcessSummary
    groups: tuple[SiteGroup, ...]
    losses: dict[str, int]
    suppressed: dict[str, SuppressedSites] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlockReport:
    """One outstanding block, or what is left of one mapping; `comm` is the name of the thread `tid`.

    Where blocks are sampled it stands for `weight` of them, all like it: 1 over the probability that it was
    recorded.
    """

    address: int
    size_bytes: int
    age_s: float
    tid: int
    comm: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class SiteBlocks:
    """The outstanding blocks of one call site, oldest first, and how much they are together.

    `left_out_count` more are in the sums, but not in the list. `caller` is who is to answer for them: the
    blamed frame, or the one that called it for them where other callers give back what they get.
    """

    site: str
    kind: AllocationKind
    caller: Frame | None
    live_bytes: int
    live_count: int
    blocks: tuple[BlockReport, ...]
    left_out_count: int
    stack: tuple[Frame, ...]
    truncated: StackEnd | None


@dataclass(frozen=True, slots=True)
class BlocksReport:
    """The answer to "which blocks": those at least `older_than_s` old, by site, the largest first.

    The sums are over all of them; `left_out_sites` have no block in the list, `left_out_count` is of blocks.
    What is `suppressed`, of any age, is in none of these.
    """

    process: ProcessSummary
    older_than_s: float
    live_bytes: int
    live_count: int
    sites: tuple[SiteBlocks, ...]
    left_out_sites: int
    left_out_count: int
    losses: dict[str, int]
    suppressed: dict[str, SuppressedSites] = field(default_factory=dict)


class Reachability(StrEnum):
    """Whether something still points to a block; analysis/reachability.py has the definitions."""

    DIRECTLY_LOST = "directly-lost"
    INDIRECTLY_LOST = "indirectly-lost"
    POSSIBLY_LOST = "possibly-lost"
    STILL_REACHABLE = "still-reachable"


@dataclass(frozen=True, slots=True)
class ReachabilitySums:
    """How many blocks there are of each kind, and how large they are together."""

    directly_lost_bytes: int = 0
    directly_lost_count: int = 0
    indirectly_lost_bytes: int = 0
    indirectly_lost_count: int = 0
    possibly_lost_bytes: int = 0
    possibly_lost_count: int = 0
    still_reachable_bytes: int = 0
    still_reachable_count: int = 0


class ScanMethod(StrEnum):
    """What the process did while its memory was read: it stood still, at first, or it ran."""

    STOPPED = "stopped"
    PARTLY_STOPPED = "partly-stopped"
    RUNNING = "running"


class ScanCaveat(StrEnum):
    """Why a scan may be wrong, or overlook something."""

    SAMPLED = "sampled"
    BLOCKS_MISSED = "blocks-missed"
    MEMORY_UNREAD = "memory-unread"
    NOT_STOPPED = "not-stopped"
    NO_REGISTERS = "no-registers"


@dataclass(frozen=True, slots=True)
class ScannedBlock:
    """A block that is lost, possibly or for certain."""

    address: int
    size_bytes: int
    age_s: float
    tid: int
    comm: str
    reachability: Reachability


@dataclass(frozen=True, slots=True)
class ScannedSite:
    """The blocks of one call site by kind. `blocks` are those lost, oldest first; others are left out.

    `reachable` is true if none is lost, false if those that are hold half of the bytes or more, else None.
    """

    site: str
    function: str | None
    module: str | None
    location: str | None
    reachable: bool | None
    sums: ReachabilitySums
    blocks: tuple[ScannedBlock, ...]
    left_out_count: int
    stack: tuple[Frame, ...]
    truncated: StackEnd | None


@dataclass(frozen=True, slots=True)
class ScanReport:
    """The answer to "which blocks are lost": those at least `older_than_s` old, the worst site first.

    `stopped_s` is how long the process stood still, in one or two pieces; `young_count` blocks were too young
    to be judged. `caveats` say what the answer has to be taken with. Sites that a suppression fits are not in
    `sites`, but in the sums, and by the pattern in `suppressed`.
    """

    process: ProcessSummary
    older_than_s: float
    method: ScanMethod
    stopped_s: float
    took_s: float
    read_bytes: int
    caveats: tuple[ScanCaveat, ...]
    young_bytes: int
    young_count: int
    sums: ReachabilitySums
    sites: tuple[ScannedSite, ...]
    suppressed: dict[str, ReachabilitySums]
    losses: dict[str, int]


@dataclass(frozen=True, slots=True)
class MappingUsage:
    """A mapping and what of it is in memory or swapped out, huge pages of hugetlbfs included.

    `flags` are the kernel's two-letter VmFlags ("nr": MAP_NORESERVE, "gd": grows down).
    """

    mapping: Mapping
    shared: bool
    resident_bytes: int
    private_dirty_bytes: int
    swap_bytes: int
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """Figures of the whole process that its mappings do not tell; 0 where the kernel does not give them."""

    peak_resident_bytes: int
    page_table_bytes: int


class MemoryUse(StrEnum):
    """What a part of an address space is used for."""

    HEAP = "heap"
    MMAP = "mmap"
    COMMIT = "commit"
    THREAD_STACKS = "thread-stacks"
    FILES = "files"
    JIT = "jit"
    SHARED = "shared"
    RESERVED = "reserved"
    VDSO = "vdso"


@dataclass(frozen=True, slots=True)
class UseSummary:
    """The memory of one use. Growth is since the attach, and negative where it shrank."""

    use: MemoryUse
    regions: int
    virtual_bytes: int
    resident_bytes: int
    private_dirty_bytes: int
    swap_bytes: int
    virtual_growth_bytes: int
    resident_growth_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """What explains the resident memory of a process; the first five add up to it.

    `allocator_retained_bytes` is what the heap holds beyond the live blocks: freed memory that was not given
    back, blocks from before the attach and the allocator's own. `explained_share` (0 to 1) is all but the
    rest.
    """

    tracked_heap_bytes: int
    tracked_mmap_bytes: int
    tracked_commit_bytes: int
    allocator_retained_bytes: int
    rest_bytes: int
    explained_share: float


@dataclass(frozen=True, slots=True)
class JitModule:
    """Methods compiled at run time since the attach, of one assembly, script or package."""

    module: str
    new_methods: int
    new_bytes: int


@dataclass(frozen=True, slots=True)
class AddressSpaceReport:
    """The answer to "what is the memory of this process made of"; `uses` has those that are there."""

    pid: int
    comm: str
    attached_s: float
    virtual_bytes: int
    resident_bytes: int
    swap_bytes: int
    peak_resident_bytes: int
    page_table_bytes: int
    uses: tuple[UseSummary, ...]
    shares: MemoryShares
    jit_modules: tuple[JitModule, ...]
    losses: dict[str, int]


class WatchState(StrEnum):
    """Where a process stands whose memory is watched.

    WATCHED does not grow. GROWING does, and waits for a window of tracing; it is traced in a WINDOW, and
    rests after it (PAUSED). REFUSED grows and cannot be traced.
    """

    WATCHED = "watched"
    GROWING = "growing"
    WINDOW = "window"
    PAUSED = "paused"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """A process whose anonymous memory is watched; `windows` is how often it was looked at closely.

    `growth_bytes_per_s` is 0 unless it grows persistently, `next_look_s` the time until it may be looked at
    again, None if that is not planned. `reason` is why it could not be attached, or "".
    """

    pid: int
    comm: str
    mode: TracingMode
    state: WatchState
    anonymous_bytes: int
    growth_bytes_per_s: float
    windows: int
    next_look_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class WatchSummary:
    """All watched processes in figures, and the `fastest` growers, the fastest first."""

    watched: int = 0
    growing: int = 0
    windows_open: int = 0
    windows_opened_total: int = 0
    fastest: tuple[WatchedProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class GuardStats:
    """What tracing costs, and what was done about it.

    A run into a probe costs a program `hit_ns`, a block that is recorded `record_ns` more; all traced
    processes together pay `host_load_percent` of a core. `cheaper_total` counts processes recorded more
    sparsely, `given_up_total` those let go of, `caches_shed_total` how often the daemon had too much memory.
    """

    hit_ns: float = 0.0
    record_ns: float = 0.0
    host_load_percent: float = 0.0
    cheaper_total: int = 0
    given_up_total: int = 0
    caches_shed_total: int = 0


@dataclass(frozen=True, slots=True)
class DaemonStats:
    """What the daemon says of itself."""

    version: str
    attach_method: str
    uptime_s: float
    ticks: int
    last_tick_s: float
    processes_attached_total: int
    processes_ended_total: int
    life: LifeStats = LifeStats()


class MetricLabel(StrEnum):
    """A label that tells processes apart in the metrics."""

    COMM = "comm"
    UNIT = "unit"
    CONTAINER = "container"
    POD = "pod"
    USER = "user"
    PID = "pid"


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What /proc says of a process; None where it cannot be read."""

    anonymous_bytes: int | None
    threads: int


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """What the metrics are made of: every traced process with its largest call sites, and who is watched.

    `usage` and `verdicts` are by pid, of processes that run. `table_entries` is how full each of the
    kernel's tables is; `ring_used_share` (0 to 1) how much of the ring of address space events waited at the
    last tick.
    """

    daemon: DaemonStats
    processes: tuple[TracedProcess, ...]
    top_sites: dict[int, tuple[SiteReport, ...]]
    watch: WatchSummary = WatchSummary()
    guard: GuardStats = GuardStats()
    usage: dict[int, ProcessUsage] = field(default_factory=dict)
    verdicts: dict[int, ProcessVerdict] = field(default_factory=dict)
    table_entries: dict[str, int] = field(default_factory=dict)
    ring_used_share: float = 0.0


class CheckStatus(StrEnum):
    """The outcome of a check of this machine."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that this machine has or lacks; `way_out` is what to do about it, "" if nothing."""

    name: str
    status: CheckStatus
    detail: str
    way_out: str = ""
