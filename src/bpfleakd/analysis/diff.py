"""Two reports compared: which call sites are new, grew, shrank or are gone.

A call site is known by its fingerprint, made of build-ids and offsets: it is the same in every run of the
same binaries, so that reports of different processes, and of different days, can be compared. After an
update, the sites in the files that changed are new, and the old ones gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfleakd.model import DiffReport, LeakReport, SiteChange, SiteDifference, SiteReport

__all__ = ["compared"]


def compared(before: LeakReport, after: LeakReport) -> DiffReport:
    """What changed from one report to the other, what gained most first.

    What the lists of sites do not hold of their process is given as left out: a site that is in one list only
    may have been left out of the other.
    """
    old = {site.site: site for site in before.sites}
    new = {site.site: site for site in after.sites}
    sites = [_difference(old.get(site), new.get(site)) for site in {**new, **old}]
    changed = [site for site in sites if site is not None]
    changed.sort(key=lambda site: (site.after_bytes - site.before_bytes, site.after_bytes), reverse=True)
    return DiffReport(
        before=before.process,
        after=after.process,
        before_left_out_bytes=before.process.live_bytes - _live_bytes(before.sites),
        after_left_out_bytes=after.process.live_bytes - _live_bytes(after.sites),
        unchanged_count=len(sites) - len(changed),
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


def _live_bytes(sites: Iterable[SiteReport]) -> int:
    return sum(site.live_bytes for site in sites)
