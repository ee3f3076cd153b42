"""docs/json.md is the contract: it must name every field, every choice and every error code."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import fields

from bpfleakd import errors
from bpfleakd.model.address_space import (
    AddressSpaceReport,
    BillKind,
    BillLine,
    JitModule,
    MemoryShares,
    MemoryUse,
    PinningSite,
    UseSummary,
)
from bpfleakd.model.blocks import BlockReport, BlocksReport, SiteBlocks
from bpfleakd.model.code.mapping import CodeMapping
from bpfleakd.model.code.probe import FunctionRole, ProbedFunction
from bpfleakd.model.code.stack import Frame, FrameKind, StackEnd
from bpfleakd.model.container import ContainerBill, ContainerKind, ContainerLine
from bpfleakd.model.daemon import Check, CheckStatus, DaemonStats
from bpfleakd.model.difference import ComparedState, DiffReport, SiteChange, SiteDifference
from bpfleakd.model.groups import GroupedReport, SiteGroup
from bpfleakd.model.history import StoredHistory, StoredSite
from bpfleakd.model.limit import MemoryLimit, MemoryLimitKind
from bpfleakd.model.oom import OomKill
from bpfleakd.model.process import (
    ProcessLabels,
    ProcessRow,
    ProcessState,
    ProcessSummary,
    TracingMode,
    TracingRequest,
)
from bpfleakd.model.process_events import ProcessEventStats
from bpfleakd.model.report import (
    AwaitedVerdicts,
    BlockType,
    HeapProfile,
    LeakReport,
    SiteReport,
    SuppressedSites,
)
from bpfleakd.model.resources import ResourceKind, ResourceShare, ResourceUse
from bpfleakd.model.runtimes.managed import (
    AreaKind,
    ManagedHeap,
    RuntimeArea,
    TypeFigures,
    TypeRow,
    TypesPrice,
    TypesReport,
)
from bpfleakd.model.runtimes.survivors import Survivor, SurvivorLine, SurvivorsPrice, SurvivorsReport
from bpfleakd.model.scan import (
    Reachability,
    ReachabilitySums,
    ScanCaveat,
    ScanMethod,
    ScannedBlock,
    ScannedSite,
    ScanReport,
)
from bpfleakd.model.site import AllocationKind, ThreadShare
from bpfleakd.model.supervision import SupervisedProcess, SupervisionState
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.model.watching import WatchedProcess, WatchState

from .tracing.doubles import a_traced

DOCS = (Path(__file__).parents[2] / "docs/json.md").read_text()

_TYPES = [
    TypeFigures,
    TypeRow,
    TypesPrice,
    TypesReport,
    Survivor,
    SurvivorLine,
    SurvivorsPrice,
    SurvivorsReport,
    AddressSpaceReport,
    AwaitedVerdicts,
    BillLine,
    BlockReport,
    BlockType,
    BlocksReport,
    Check,
    CodeMapping,
    ComparedState,
    ContainerBill,
    ContainerLine,
    DaemonStats,
    DiffReport,
    Frame,
    GroupedReport,
    HeapProfile,
    JitModule,
    LeakReport,
    ManagedHeap,
    RuntimeArea,
    ProcessEventStats,
    MemoryShares,
    OomKill,
    MemoryLimit,
    PinningSite,
    ProbedFunction,
    ProcessLabels,
    ProcessVerdict,
    ProcessSummary,
    ReachabilitySums,
    ResourceShare,
    ResourceUse,
    ScanReport,
    ScannedBlock,
    ScannedSite,
    StoredHistory,
    StoredSite,
    SiteBlocks,
    SiteDifference,
    SiteGroup,
    SiteReport,
    SupervisedProcess,
    SuppressedSites,
    ThreadShare,
    ProcessRow,
    TracingRequest,
    UseSummary,
    WatchedProcess,
]
_CHOICES = [
    AllocationKind,
    AreaKind,
    BillKind,
    CheckStatus,
    ContainerKind,
    FrameKind,
    FunctionRole,
    MemoryLimitKind,
    MemoryUse,
    ProcessState,
    SupervisionState,
    TracingMode,
    Verdict,
    WatchState,
    Reachability,
    ResourceKind,
    ScanCaveat,
    ScanMethod,
    SiteChange,
]


@pytest.mark.parametrize("kind", _TYPES, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind):
    """In a separate row of a table."""
    assert [field.name for field in fields(kind) if f"\n| `{field.name}` |" not in DOCS] == []


@pytest.mark.parametrize("kind", _CHOICES, ids=lambda kind: kind.__name__)
def test_every_choice_is_documented(kind):
    """A reader may branch on them."""
    assert [choice.value for choice in kind if f"`{choice}`" not in DOCS] == []


def test_every_reason_for_a_truncated_stack_is_documented():
    """`bottom` is sent as null."""
    assert [end for end in StackEnd if f"\n| `{end}` |" not in DOCS] == [StackEnd.BOTTOM]


def test_every_loss_is_documented():
    """All that a report of a process has."""
    losses = a_traced().losses
    assert [reason for reason in losses if f"\n| `{reason}` |" not in DOCS] == []


def test_every_error_code_is_documented_with_its_exit_code():
    """Except the root, which is never raised for a known cause, and the configuration's, which is not sent.
    """
    pending = errors.BpfleakdError.__subclasses__()
    while pending:
        error = pending.pop()
        pending += error.__subclasses__()
        if error.__module__ == "bpfleakd.errors" and error is not errors.ConfigError:
            (row,) = [line for line in DOCS.splitlines() if line.startswith(f"| `{error.code}` |")]
            assert row.split("|")[3].strip() == str(error.exit_code)
