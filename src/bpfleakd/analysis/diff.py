"""Two reports compared: which call sites are new, grew, shrank or are gone.

A call site is known by its fingerprint, made of build-ids and offsets: it is the same in every run of the
same binaries, so that reports of different processes, and of different days, can be compared. After an
update, the sites in the files that changed are new, and the old ones gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfleakd.model.difference import ComparedState, DiffReport, SiteChange, SiteDifference
from bpfleakd.model.report import LeakReport, SiteReport
from bpfleakd.model.site import AllocationKind

__all__ = ["compared"]


def compared(
    before: LeakReport, after: LeakReport, sources: tuple[str, str] = ("before", "after")
) -> DiffReport:
    """What changed from one report to the other, what gained most first; `sources` are their names.

    What the lists of sites do not hold of their process is given as left out: a site that is in one list only
    may have been left out of the other.
    """
    old = {site.site: site for site in before.sites}
    new = {site.site: site for site in after.sites}
    sites = [_difference(old.get(site), new.get(site)) for site in {**new, **old}]
    changed = [site for site in sites if site is not None]
    changed.sort(key=lambda site: (site.after_bytes - site.before_bytes, site.after_bytes), reverse=True)
    return DiffReport(
        before=_state(before, sources[0]),
        after=_state(after, sources[1]),
        unchanged_count=len(sites) - len(changed),
        left_out_sites=0,
        sites=tuple(changed),
    )


def _difference(old: SiteReport | None, new: SiteReport | None) -> SiteDifference | None:
    before = (old.live_bytes, old.live_count) if old else (0, 0)
    after = (new.live_bytes, new.live_count) if new else (0, 0)
    if before == after:
        return None
    if before[1] == 0:
        change = SiteChange.NEW
    elif after[1] == 0:
        change = SiteChange.GONE
    else:
        change = SiteChange.GROWN if after > before else SiteChange.SHRUNK
    shown = new or old
    assert shown is not None
    return SiteDifference(
        site=shown.site,
        kind=shown.kind,
        change=change,
        function=shown.function,
        module=shown.module,
        location=shown.location,
        before_bytes=before[0],
        before_count=before[1],
        after_bytes=after[0],
        after_count=after[1],
        stack=shown.stack,
        truncated=shown.truncated,
    )


def _state(report: LeakReport, source: str) -> ComparedState:
    process = report.process
    return ComparedState(
        source=source,
        pid=process.pid,
        comm=process.comm,
        exe=process.exe,
        mode=process.mode,
        attached_s=process.attached_s,
        live_bytes=process.live_bytes,
        live_count=process.live_count,
        left_out_bytes=process.live_bytes - _live_bytes(report.sites),
        resolution_s=0.0,
    )


def _live_bytes(sites: Iterable[SiteReport]) -> int:
    # Files are no part of a process' totals.
    return sum(site.live_bytes for site in sites if site.kind is not AllocationKind.FILE)
