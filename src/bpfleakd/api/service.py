"""What the API asks of the daemon. The daemon implements it; the HTTP side and its tests need no more.

Every method may raise a BpfleakdError, which crosses to the client as it is.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from bpfleakd.model.address_space import AddressSpaceReport
from bpfleakd.model.blocks import BlocksReport
from bpfleakd.model.daemon import DaemonStats
from bpfleakd.model.difference import DiffReport
from bpfleakd.model.groups import GroupedReport, GroupKey
from bpfleakd.model.history import StoredHistory
from bpfleakd.model.process import ProcessRow, TracingMode
from bpfleakd.model.profile import HeapProfile
from bpfleakd.model.report import LeakReport, SortKey
from bpfleakd.model.runtimes.managed import TypesPrice, TypesReport
from bpfleakd.model.runtimes.requested import HeapSample, HeapSamplePrice, NamesReport
from bpfleakd.model.runtimes.survivors import SurvivorsPrice, SurvivorsReport
from bpfleakd.model.scan import ScanReport
from bpfleakd.model.selection import ProcessSelection
from bpfleakd.model.stored_report import StoredReport, StoredReportEntry
from bpfleakd.model.supervision import SupervisedProcess
from bpfleakd.model.watching import WatchedProcess

__all__ = [
    "ATTACH_MODES",
    "BLOCKS_LISTED",
    "BLOCKS_LISTED_MAX",
    "HEAP_SAMPLE_MAX_S",
    "HEAP_SAMPLE_S",
    "PATTERN_CHARS",
    "REPORTS_LISTED",
    "REPORTS_LISTED_MAX",
    "STOP_LIMIT_MAX_S",
    "STOP_LIMIT_S",
    "MatchList",
    "ProcessList",
    "ReportList",
    "Service",
    "SortKey",
    "SupervisedList",
    "WatchedList",
]

# The modes that a process a user can attach in.
ATTACH_MODES = (TracingMode.EXACT, TracingMode.SAMPLED, TracingMode.AUTO, TracingMode.INSIDE)

# Number of blocks in a list: the default, and the maximum.
BLOCKS_LISTED = 1_000
BLOCKS_LISTED_MAX = 100_000
# Likewise of reports that are kept.
REPORTS_LISTED = 100
REPORTS_LISTED_MAX = 10_000

# Maximum length of a pattern that selects processes.
PATTERN_CHARS = 256

# How long a scan may stop a process: the default, and the maximum.
STOP_LIMIT_S = 0.2
STOP_LIMIT_MAX_S = 60.0

# How long a heap is sampled: the default, and the maximum.
HEAP_SAMPLE_S = 10.0
HEAP_SAMPLE_MAX_S = 300.0


class ProcessList(Struct, frozen=True):
    """The answer to "what is being traced": an object rather than a list, so that it may grow."""

    processes: tuple[ProcessRow, ...]


class WatchedList(Struct, frozen=True):
    """The answer to "whose memory is being watched"."""

    watched: tuple[WatchedProcess, ...]


class SupervisedList(Struct, frozen=True):
    """The answer to "what is done with the processes of this host, and why"."""

    supervised: tuple[SupervisedProcess, ...]


class MatchList(Struct, frozen=True):
    """The answer to "which processes are that"."""

    pids: tuple[int, ...]


class ReportList(Struct, frozen=True):
    """The answer to "what is remembered of processes that ended"."""

    reports: tuple[StoredReportEntry, ...]


class Service(Protocol):
    """The daemon, as the API sees it. `pid` is in the daemon's pid namespace."""

    async def attach(
        self, pid: int, mode: TracingMode | None = None, *, enable_profile: bool = False
    ) -> ProcessRow:
        """Start to trace a process: EXACT, SAMPLED, INSIDE, or AUTO, which is sampled once exact costs too
        much.

        None: INSIDE where a sampler inside the process announces its blocks, else EXACT. `enable_profile`
        turns on the heap profile of a Go program, in its memory, until the detach.
        """
        ...

    async def detach(self, pid: int) -> ProcessRow:
        """Stop tracing a process and return its last figures."""
        ...

    async def processes(self) -> tuple[ProcessRow, ...]:
        """Return every traced process."""
        ...

    async def watched(self) -> tuple[WatchedProcess, ...]:
        """Return every process whose memory is watched, those that grow first."""
        ...

    async def supervised(self) -> tuple[SupervisedProcess, ...]:
        """Return every process of this host, with the policy's decision."""
        ...

    async def matching(self, selection: ProcessSelection, *, asking_pid: int) -> tuple[int, ...]:
        """Return the processes that are meant, without `asking_pid`."""
        ...

    async def report(
        self, pid: int, *, limit: int | None, sort: SortKey, suppress: bool = True
    ) -> LeakReport:
        """Return the largest `limit` call sites of a process (all of them for None).

        Here and below `suppress` leaves out those that a suppression fits.
        """
        ...

    async def groups(
        self, pid: int, *, by: GroupKey, limit: int | None, sort: SortKey, suppress: bool = True
    ) -> GroupedReport:
        """Return the largest `limit` groups (all for None) of all call sites of a process."""
        ...

    async def profile(self, pid: int) -> HeapProfile:
        """Return all call sites of a process, and the code that it maps."""
        ...

    async def blocks(
        self, pid: int, *, site: str | None, older_than_s: float, limit: int, suppress: bool = True
    ) -> BlocksReport:
        """Return outstanding blocks of one call site of a process, or of all."""
        ...

    async def scan(
        self, pid: int, *, older_than_s: float, stop: bool, stop_limit_s: float, limit: int
    ) -> ScanReport:
        """Look for blocks that nothing points to, and list at most `limit` of them.

        The process is stopped for at most `stop_limit_s`, or not at all.
        """
        ...

    async def types_price(self, pid: int) -> TypesPrice:
        """Return how long counting its objects by type would stop a process."""
        ...

    async def types(self, pid: int, *, stop: bool = True) -> TypesReport:
        """Count the objects of a managed heap by type; this stops the process."""
        ...

    async def names(self, pid: int) -> NamesReport:
        """Return which frames of its call sites have names."""
        ...

    async def request_names(self, pid: int) -> NamesReport:
        """Have its runtime write names down, and use them."""
        ...

    async def heap_sample_price(self, pid: int) -> HeapSamplePrice:
        """Return what it takes to sample its heap through its inspector."""
        ...

    async def heap_sample(self, pid: int, *, sample_s: float) -> HeapSample:
        """Sample its heap through its inspector, which is open meanwhile."""
        ...

    async def survivors_price(self, pid: int) -> SurvivorsPrice:
        """Return what it takes to sample who allocates what stays alive."""
        ...

    async def survivors(self, pid: int, *, sample_s: float) -> SurvivorsReport:
        """Have its runtime sample who allocates what stays alive, and what holds that."""
        ...

    async def history(
        self, pid: int, *, limit: int | None, site: str | None = None, survivors: bool = True
    ) -> StoredHistory:
        """Return what the verdicts on the `limit` first call sites (all for None), or on one, are made of.

        Without survivors it is the course of live memory alone, for which no block has to be read.
        """
        ...

    async def compare(self, pid: int, *, from_ago_s: float | None, to_ago_s: float) -> DiffReport:
        """Return what changed in a process between two times, in seconds ago (None: since its attach)."""
        ...

    async def address_space(self, pid: int) -> AddressSpaceReport:
        """Return what the memory of a process is made of."""
        ...

    async def reports(self, pid: int | None, *, limit: int) -> tuple[StoredReportEntry, ...]:
        """Return the newest reports that are kept, of a pid or of all."""
        ...

    async def stored_report(self, number: int) -> StoredReport:
        """Return a report that is kept."""
        ...

    async def stats(self) -> DaemonStats:
        """Return the daemon's own figures."""
        ...
