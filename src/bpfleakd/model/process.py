"""A process, and how bpfleakd traces it."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from bpfleakd.model.code.probe import ProbedFunction
from bpfleakd.model.verdict import ProcessVerdict

# Stands for a rule: a user requested it.
MANUAL = "manual"


class ProcessId(Struct, frozen=True, order=True):
    """A process: its pid and its start time, since pids are reused.

    `start_ticks` is field 22 of /proc/PID/stat, in clock ticks since boot.
    """

    pid: int
    start_ticks: int

    @property
    def instance(self) -> str:
        """A text that stands for the process, and for no other with this pid."""
        return f"{self.pid}@{self.start_ticks}"


class ProcessState(StrEnum):
    """The life of a traced process. OOM: the kernel killed it because memory had run out."""

    TRACED = "traced"
    EXITED = "exited"
    EXECED = "execed"
    OOM = "oom"
    DETACHED = "detached"


# A Go program is recorded from its own heap profile, whatever the requested mode.
GO_PROFILE_MODE = "go-profile"


class TracingMode(StrEnum):
    """How closely a process is traced, and at what cost.

    OFF ignores the process. WATCH samples its memory from /proc and never attaches. AUTO does the same until
    the memory grows, and then attaches for a while. SAMPLED records a share of the bytes allocated, EXACT
    every call. INSIDE records the blocks that a sampler inside the process announces (docs/inside.md).
    """

    OFF = "off"
    WATCH = "watch"
    AUTO = "auto"
    SAMPLED = "sampled"
    EXACT = "exact"
    INSIDE = "inside"


class ProcessLabels(Struct, frozen=True):
    """User, unit, container and so on of a process; None if missing.

    `unit` is the innermost systemd unit, `container` the container's id (64 hexadecimal digits), `pod` the
    Kubernetes pod's uid.
    """

    user: str | None = None
    cgroup: str | None = None
    unit: str | None = None
    container: str | None = None
    pod: str | None = None


class TracingRequest(Struct, frozen=True):
    """How to trace a process. It is stored, so the next daemon reads it however this one ends.

    `rule` is its origin: MANUAL, "rule 2", "default"; None if unknown. `live_blocks` is the maximum of
    recorded blocks; None: as configured. At a higher `level` fewer blocks are recorded; `limited` is why, and
    "" at level 0. `enable_profile` turns on the heap profile of a Go program that has none, until the detach.
    """

    mode: TracingMode = TracingMode.EXACT
    rule: str | None = None
    live_blocks: int | None = None
    level: int = 0
    limited: str = ""
    labels: ProcessLabels = ProcessLabels()
    enable_profile: bool = False

    @property
    def is_manual(self) -> bool:
        """Whether a user requested it."""
        return self.rule == MANUAL


class ProcessSummary(Struct, frozen=True):
    """The totals of one traced process. `unmatched_frees` were of blocks from before the attach.

    `mode` is EXACT if every block since the attach was recorded, else SAMPLED, INSIDE or GO_PROFILE_MODE:
    then the figures of the heap are estimates with standard errors. About one block per
    `sample_interval_bytes` is recorded now; None: all are. `growth_bytes_per_s` is None while unknown.
    `notes` are sentences on missing data and how to get it.
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
    growth_bytes_per_s: float | None
    temporary_count: int
    peak_live_bytes: int
    labels: ProcessLabels = ProcessLabels()
    sample_interval_bytes: int | None = None
    live_bytes_stderr: float = 0.0
    live_count_stderr: float = 0.0
    notes: tuple[str, ...] = ()


class ProcessRow(Struct, frozen=True):
    """A row of `bpfleakctl ps`: the totals, the kind of attachment and the losses.

    `probe_hits` is how often the process hit a probe, `load_percent` the cost of that in percent of a core.
    It was adopted `adopted_count` times; `gap_s` is its total time without a daemon. `limited` is why it is
    traced less closely than requested, or "". `process_verdict` is its latest verdict; None before the first.
    `request` is how to trace it; `set_aside` is the error that suspends its readings for a while, or "".
    """

    process: ProcessSummary
    attach_method: str
    sites: int
    probes: tuple[ProbedFunction, ...]
    losses: dict[str, int] = msgspec.field(default_factory=dict)
    probe_hits: int = 0
    adopted_count: int = 0
    gap_s: float = 0.0
    load_percent: float = 0.0
    limited: str = ""
    request: TracingRequest = TracingRequest()
    set_aside: str = ""
    process_verdict: ProcessVerdict | None = None


class ProcessSelection(Struct, frozen=True):
    """What all selected processes have in common; None accepts anything.

    `name` and `unit` are shell patterns, as in the policy: of the process' short name or the file name of its
    executable, and of its systemd unit, where ".service" may be left out. `container` is the beginning of the
    container's id.
    """

    name: str | None = None
    unit: str | None = None
    container: str | None = None

    @property
    def words(self) -> str:
        """The selection in a few words, for messages."""
        given = (("name", self.name), ("unit", self.unit), ("container", self.container))
        return ", ".join(f"{what} {text!r}" for what, text in given if text is not None)
