"""Answers without addresses, for a TCP address that anybody on the machine can reach.

The addresses of a process' code are what address space layout randomisation hides from other users.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from bpfleakd.model.code.stack import Frame
from bpfleakd.model.difference import DiffReport
from bpfleakd.model.groups import GroupedReport
from bpfleakd.model.report import LeakReport, SiteReport, StoredReport
from bpfleakd.model.resources import DescriptorSite

_Site = TypeVar("_Site", SiteReport, DescriptorSite)
Report = TypeVar("Report", LeakReport, GroupedReport, DiffReport, StoredReport)


def without_addresses(report: Report) -> Report:
    """A report whose frames have the address 0; the offsets in their files remain."""
    hidden = _HiddenFrames()
    match report:
        case LeakReport():
            return replace(
                report,
                sites=tuple(hidden.site(site) for site in report.sites),
                descriptor_sites=tuple(hidden.site(site) for site in report.descriptor_sites),
            )
        case DiffReport():
            return replace(report, sites=tuple(replace(s, stack=hidden.stack(s.stack)) for s in report.sites))
        case GroupedReport():
            return replace(
                report, groups=tuple(replace(g, stack=hidden.stack(g.stack)) for g in report.groups)
            )
        case StoredReport():
            return replace(report, report=without_addresses(report.report))


class _HiddenFrames:
    """Frames without their addresses, each created once: the stacks of a process share most of theirs."""

    def __init__(self) -> None:
        self._made: dict[int, Frame] = {}

    def stack(self, stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """The frames of a stack, which must outlive this object."""
        return tuple(self._hidden(frame) for frame in stack)

    def site(self, site: _Site) -> _Site:
        """A call site, whose frames must outlive this object."""
        called_by = self._hidden(site.called_by) if site.called_by else None
        return replace(site, stack=self.stack(site.stack), called_by=called_by)

    def _hidden(self, frame: Frame) -> Frame:
        made = self._made.get(id(frame))
        if made is None:
            made = self._made[id(frame)] = replace(frame, address=0)
        return made
