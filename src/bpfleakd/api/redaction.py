"""Answers without addresses, for an address that anybody on the machine can reach.

Where the code of a process lies is what address space layout randomisation hides from other users.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from bpfleakd.model.difference import DiffReport
from bpfleakd.model.groups import GroupedReport
from bpfleakd.model.report import LeakReport
from bpfleakd.model.stack import Frame
from bpfleakd.model.stored_report import StoredReport

__all__ = ["Report", "without_addresses"]

Report = TypeVar("Report", LeakReport, GroupedReport, DiffReport, StoredReport)


def without_addresses(report: Report) -> Report:
    """Return a report whose frames have the address 0; the offsets in their files stay."""
    match report:
        case LeakReport():
            return replace(report, sites=tuple(replace(s, stack=_hidden(s.stack)) for s in report.sites))
        case GroupedReport():
            return replace(report, groups=tuple(replace(g, stack=_hidden(g.stack)) for g in report.groups))
        case DiffReport():
            return replace(report, sites=tuple(replace(s, stack=_hidden(s.stack)) for s in report.sites))
        case StoredReport():
            return replace(report, report=without_addresses(report.report))


def _hidden(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return tuple(replace(frame, address=0) for frame in stack)
