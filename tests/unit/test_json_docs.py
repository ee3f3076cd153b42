"""docs/json.md is the contract: it must name every field, every choice and every error code."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from bpfleakd import errors, model

from .monitor.doubles import a_traced

DOCS = (Path(__file__).parents[2] / "docs/json.md").read_text()

_TYPES = [
    model.AddressSpaceReport,
    model.BlockReport,
    model.BlocksReport,
    model.Check,
    model.CodeMapping,
    model.ComparedState,
    model.DaemonStats,
    model.DiffReport,
    model.Frame,
    model.GroupedReport,
    model.HeapProfile,
    model.JitModule,
    model.LeakReport,
    model.LifeStats,
    model.MemoryShares,
    model.MemoryLimit,
    model.ProbedFunction,
    model.ProcessLabels,
    model.ProcessVerdict,
    model.ProcessSummary,
    model.ReachabilitySums,
    model.ScanReport,
    model.ScannedBlock,
    model.ScannedSite,
    model.SavedHistory,
    model.SavedSite,
    model.SiteBlocks,
    model.SiteDifference,
    model.SiteGroup,
    model.SiteReport,
    model.SupervisedProcess,
    model.SuppressedSites,
    model.ThreadShare,
    model.TracedProcess,
    model.UseSummary,
    model.WatchedProcess,
]
_CHOICES = [
    model.AllocationKind,
    model.CheckStatus,
    model.FrameKind,
    model.FunctionRole,
    model.MemoryLimitKind,
    model.MemoryUse,
    model.ProcessState,
    model.SupervisionState,
    model.TracingMode,
    model.Verdict,
    model.WatchState,
    model.Reachability,
    model.ScanCaveat,
    model.ScanMethod,
    model.SiteChange,
]


@pytest.mark.parametrize("kind", _TYPES, ids=lambda kind: kind.__name__)
def test_every_field_is_documented(kind):
    """In a row of a table of its own."""
    assert [field.name for field in fields(kind) if f"\n| `{field.name}` |" not in DOCS] == []


@pytest.mark.parametrize("kind", _CHOICES, ids=lambda kind: kind.__name__)
def test_every_choice_is_documented(kind):
    """A reader may branch on them."""
    assert [choice.value for choice in kind if f"`{choice}`" not in DOCS] == []


def test_every_reason_for_a_truncated_stack_is_documented():
    """`bottom` is sent as null."""
    assert [end for end in model.StackEnd if f"\n| `{end}` |" not in DOCS] == [model.StackEnd.BOTTOM]


def test_every_loss_is_documented():
    """All that a report of a process has."""
    losses = a_traced().losses
    assert [reason for reason in losses if f"\n| `{reason}` |" not in DOCS] == []


def test_every_error_code_is_documented_with_its_exit_code():
    """Except the root, which nobody raises for a known cause, and the configuration's, which is not sent."""
    pending = errors.BpfleakdError.__subclasses__()
    while pending:
        error = pending.pop()
        pending += error.__subclasses__()
        if error.__module__ == "bpfleakd.errors" and error is not errors.ConfigError:
            (row,) = [line for line in DOCS.splitlines() if line.startswith(f"| `{error.code}` |")]
            assert row.split("|")[3].strip() == str(error.exit_code)
