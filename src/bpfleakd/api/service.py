"""The daemon's interface for the API. The daemon implements it; the HTTP side and its tests need no more.

Every method may raise a BpfleakdError, which the client receives unchanged.
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
from bpfleakd.model.process import ProcessRow, ProcessSelection, TracingMode
from bpfleakd.model.report import HeapProfile, LeakReport, SortKey, StoredReport, StoredReportEntry
from bpfleakd.model.runtimes.managed import TypesPrice, TypesReport
from bpfleakd.model.runtimes.requested import HeapSample, HeapSamplePrice, NamesReport
from bpfleakd.model.runtimes.survivors import SurvivorsPrice, SurvivorsReport
from bpfleakd.model.scan import ScanReport
from bpfleakd.model.supervision import SupervisedProcess
from bpfleakd.model.watching import WatchedProcess

# The modes in which a user can attach.
ATTACH_MODES = (TracingMode.EXACT, TracingMode.SAMPLED, TracingMode.AUTO, TracingMode.INSIDE)

# Number of blocks in a list: the default, and the maximum.
BLOCKS_LISTED = 1_000
BLOCKS_LISTED_MAX = 100_000
# The same for stored reports.
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
    """The traced processes: an object rather than a list, so that it may grow."""

    processes: tuple[ProcessRow, ...]


class WatchedList(Struct, frozen=True):
    """The watched processes."""

    watched: tuple[WatchedProcess, ...]


class SupervisedList(Struct, frozen=True):
    """The processes of this host, each with the policy's decision."""

    supervised: tuple[SupervisedProcess, ...]


class MatchList(Struct, frozen=True):
    """The matching processes."""

    pids: tuple[int, ...]


class ReportList(Struct, frozen=True):
    """The stored reports of processes that ended."""

    reports: tuple[StoredReportEntry, ...]


class Service(Protocol):
    """The daemon, as used by the API. `pid` is in the daemon's pid namespace."""

    async def attach(
        self, pid: int, mode: TracingMode | None = None, *, enable_profile: bool = False
    ) -> ProcessRow:
        """Start tracing a process: EXACT, SAMPLED, INSIDE, or AUTO, which samples once exact costs too much.

        None: INSIDE if a sampler inside the process announces its blocks, else EXACT. `enable_profile` turns
        on the heap profile of a Go program, in its memory, until the detach.
        """

    async def detach(self, pid: int) -> ProcessRow:
        """Stop tracing a process and return its last figures."""

    async def processes(self) -> tuple[ProcessRow, ...]:
        """Return every traced process."""

    async def watched(self) -> tuple[WatchedProcess, ...]:
        """Every watched process, the growing ones first."""

    async def supervised(self) -> tuple[SupervisedProcess, ...]:
        """Return every process of this host, with the policy's decision."""

    async def matching(self, selection: ProcessSelection, *, asking_pid: int) -> tuple[int, ...]:
        """The processes that match, without `asking_pid`."""

    async def report(
        self, pid: int, *, limit: int | None, sort: SortKey, suppress: bool = True
    ) -> LeakReport:
        """The largest `limit` call sites of a process (all of them for None).

        Here and below `suppress` leaves out suppressed call sites.
        """

    async def groups(
        self, pid: int, *, by: GroupKey, limit: int | None, sort: SortKey, suppress: bool = True
    ) -> GroupedReport:
        """Return the largest `limit` groups (all for None) of all call sites of a process."""

    async def profile(self, pid: int) -> HeapProfile:
        """Return all call sites of a process, and the code that it maps."""

    async def blocks(
        self, pid: int, *, site: str | None, older_than_s: float, limit: int, suppress: bool = True
    ) -> BlocksReport:
        """Return outstanding blocks of one call site of a process, or of all."""

    async def scan(
        self, pid: int, *, older_than_s: float, stop: bool, stop_limit_s: float, limit: int
    ) -> ScanReport:
        """Search for blocks that nothing points to, and list at most `limit` of them.

        The process is stopped for at most `stop_limit_s`, or not at all.
        """

    async def types_price(self, pid: int) -> TypesPrice:
        """How long counting objects by type would stop a process."""

    async def types(self, pid: int, *, stop: bool = True) -> TypesReport:
        """Count the objects of a managed heap by type; this stops the process."""

    async def names(self, pid: int) -> NamesReport:
        """Return which frames of its call sites have names."""

    async def request_names(self, pid: int) -> NamesReport:
        """Make its runtime write names, and use them."""

    async def heap_sample_price(self, pid: int) -> HeapSamplePrice:
        """The cost of sampling its heap through its inspector."""

    async def heap_sample(self, pid: int, *, sample_s: float) -> HeapSample:
        """Sample its heap through its inspector, which is open meanwhile."""

    async def survivors_price(self, pid: int) -> SurvivorsPrice:
        """The cost of sampling the allocators of retained objects."""

    async def survivors(self, pid: int, *, sample_s: float) -> SurvivorsReport:
        """Let its runtime sample the allocators of retained objects, and what refers to these."""

    async def history(
        self, pid: int, *, limit: int | None, site: str | None = None, survivors: bool = True
    ) -> StoredHistory:
        """The input of the verdicts on the `limit` first call sites (None: all), or on one.

        Without survivors it only has live memory over time, for which no block is read.
        """

    async def compare(self, pid: int, *, from_ago_s: float | None, to_ago_s: float) -> DiffReport:
        """The changes of a process between two times, in seconds ago (None: since its attach)."""

    async def address_space(self, pid: int) -> AddressSpaceReport:
        """The memory of a process by use."""

    async def reports(self, pid: int | None, *, limit: int) -> tuple[StoredReportEntry, ...]:
        """The newest stored reports, of a pid or of all."""

    async def stored_report(self, number: int) -> StoredReport:
        """A stored report."""

    async def stats(self) -> DaemonStats:
        """Return the daemon's own figures."""
