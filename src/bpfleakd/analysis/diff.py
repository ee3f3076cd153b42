"""Two reports compared: which call sites are new, grew, shrank or are gone.

A call site is identified by its fingerprint, made of build-ids and offsets: it is the same in every run of
the same binaries, so reports of different processes and different days can be compared. A site that is in one
report only, in a file that was rebuilt in between, is also matched by the names of its functions
(analysis.rebuilt).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bpfleakd.analysis.rebuilt import NameKey, key_by_names, modules_built_anew
from bpfleakd.model.difference import ComparedState, DiffReport, SiteChange, SiteDifference
from bpfleakd.model.report import LeakReport, SiteReport
from bpfleakd.model.site import AllocationKind

# One call site in the earlier and in the later report; it may be missing in one of them.
_Pair = tuple[Sequence[SiteReport], Sequence[SiteReport]]


def compared(
    before: LeakReport, after: LeakReport, sources: tuple[str, str] = ("before", "after")
) -> DiffReport:
    """Compare two reports, whose names are `sources`; the sites that gained most come first.

    Sites missing in the lists count as left out: a site in only one list may be missing in the other because
    of its limit.
    """
    built_anew = modules_built_anew(before, after)
    pairs = list(_pairs(before.sites, after.sites, built_anew))
    changed = [site for site in (_difference(*pair) for pair in pairs) if site is not None]
    changed.sort(key=lambda site: (site.after_bytes - site.before_bytes, site.after_bytes), reverse=True)
    return DiffReport(
        before=_state(before, sources[0]),
        after=_state(after, sources[1]),
        unchanged_count=len(pairs) - len(changed),
        left_out_sites=0,
        sites=tuple(changed),
        built_anew=tuple(sorted(built_anew)),
    )


def _pairs(
    before: Iterable[SiteReport], after: Iterable[SiteReport], built_anew: frozenset[str]
) -> Iterator[_Pair]:
    """Yield every site of both reports once."""
    old = {site.site: site for site in before}
    new = {site.site: site for site in after}
    by_names: dict[NameKey, tuple[list[SiteReport], list[SiteReport]]] = {}
    for fingerprint in {**new, **old}:
        earlier = [old[fingerprint]] if fingerprint in old else []
        later = [new[fingerprint]] if fingerprint in new else []
        key = None if earlier and later else key_by_names((earlier or later)[0], built_anew)
        if key is None:
            yield earlier, later
        else:
            same = by_names.setdefault(key, ([], []))
            same[0].extend(earlier)
            same[1].extend(later)
    yield from by_names.values()


def _difference(old: Sequence[SiteReport], new: Sequence[SiteReport]) -> SiteDifference | None:
    before, after = _live(old), _live(new)
    if before == after:
        return None
    if before[1] == 0:
        change = SiteChange.NEW
    elif after[1] == 0:
        change = SiteChange.GONE
    else:
        change = SiteChange.GROWN if after > before else SiteChange.SHRUNK
    earlier, later = _largest(old), _largest(new)
    shown = later or earlier
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
        before_site=earlier.site if earlier else None,
    )


def _live(sites: Iterable[SiteReport]) -> tuple[int, int]:
    figures = [(site.live_bytes, site.live_count) for site in sites]
    return sum(size for size, _count in figures), sum(count for _size, count in figures)


def _largest(sites: Iterable[SiteReport]) -> SiteReport | None:
    return max(sites, key=lambda site: site.live_bytes, default=None)


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
    # Memory of files is not part of a process' totals.
    return sum(site.live_bytes for site in sites if site.kind is not AllocationKind.FILE)
