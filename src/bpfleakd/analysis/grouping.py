"""Groups call sites by function, caller, module, thread or stack.

Rules:
  - A group is a sum over sites; the groups add up to the sum over all sites. Nothing is left out: sites
    without a function, module or thread form a separate group, whose name is None.
  - Function and module of a group are the blamed ones, so each site is in one group.
  - Threads are counted block by block while the program runs, and sites by their counters: the difference is
    in the group without a thread, and may be negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bpfleakd.model.code.stack import Frame
from bpfleakd.model.groups import GroupedReport, GroupKey, SiteGroup
from bpfleakd.model.report import LeakReport, SiteReport, SortKey
from bpfleakd.table.estimates import stderr_of_sum


def _function(charged: SiteReport | Frame) -> str | None:
    if charged.function:
        return charged.function
    if charged.module is None or charged.function_start is None:
        return None
    return f"{charged.module}+{charged.function_start:#x}"


_NAMES: dict[GroupKey, Callable[[SiteReport], str | None]] = {
    GroupKey.SITE: lambda site: site.site,
    GroupKey.STACK: lambda site: site.site,
    GroupKey.FUNCTION: _function,
    GroupKey.CALLER: lambda site: _function(site.called_by or site),
    GroupKey.MODULE: lambda site: site.module,
}


def grouped(report: LeakReport, by: GroupKey, *, sort: SortKey, limit: int | None = None) -> GroupedReport:
    """Group the sites of a report and return the largest `limit` groups.

    Threads have no growth, so their groups are sorted by live bytes instead. Groups have no verdict; sorting
    by verdict sorts them by growth.
    """
    groups = _by_thread(report.sites) if by is GroupKey.THREAD else _by_name(report.sites, by)
    groups.sort(key=lambda group: _rank(group, sort), reverse=True)
    return GroupedReport(report.process, tuple(groups[:limit]), report.losses, report.suppressed)


def _rank(group: SiteGroup, sort: SortKey) -> tuple[float, ...]:
    growth = group.growth_bytes_per_s or 0.0
    if sort in (SortKey.GROWTH, SortKey.VERDICT):
        return growth, group.live_bytes
    return (group.live_bytes if sort is SortKey.LIVE else group.live_count), growth


def _by_name(sites: Iterable[SiteReport], by: GroupKey) -> list[SiteGroup]:
    groups: dict[str | None, list[SiteReport]] = {}
    for site in sites:
        groups.setdefault(_NAMES[by](site), []).append(site)
    return [_group(name, members, by) for name, members in groups.items()]


def _group(name: str | None, sites: list[SiteReport], by: GroupKey) -> SiteGroup:
    group = SiteGroup(
        group=name,
        live_bytes=sum(site.live_bytes for site in sites),
        live_count=sum(site.live_count for site in sites),
        allocated_bytes=sum(site.allocated_bytes for site in sites),
        allocated_count=sum(site.allocated_count for site in sites),
        growth_bytes_per_s=sum(site.growth_bytes_per_s for site in sites),
        sites=tuple(dict.fromkeys(site.site for site in sites)),
        live_bytes_stderr=stderr_of_sum(site.live_bytes_stderr for site in sites),
        live_count_stderr=stderr_of_sum(site.live_count_stderr for site in sites),
    )
    if by is GroupKey.STACK:
        return replace(group, stack=sites[0].stack, truncated=sites[0].truncated)
    return group


class _Thread(Struct):
    comm: str | None = None
    live_bytes: int = 0
    live_count: int = 0
    sites: list[str] = msgspec.field(default_factory=list)

    def add(self, site: str, live_bytes: int, live_count: int) -> None:
        if live_bytes or live_count:
            self.live_bytes += live_bytes
            self.live_count += live_count
            self.sites.append(site)


def _by_thread(sites: Iterable[SiteReport]) -> list[SiteGroup]:
    threads: dict[int, _Thread] = {}
    unknown = _Thread()
    for site in sites:
        for share in site.threads:
            thread = threads.setdefault(share.tid, _Thread(share.comm))
            thread.add(site.site, share.live_bytes, share.live_count)
        unknown.add(
            site.site,
            site.live_bytes - sum(share.live_bytes for share in site.threads),
            site.live_count - sum(share.live_count for share in site.threads),
        )
    groups = [_thread_group(str(tid), thread) for tid, thread in threads.items()]
    return [*groups, _thread_group(None, unknown)] if unknown.sites else groups


def _thread_group(name: str | None, thread: _Thread) -> SiteGroup:
    return SiteGroup(
        group=name,
        live_bytes=thread.live_bytes,
        live_count=thread.live_count,
        allocated_bytes=None,
        allocated_count=None,
        growth_bytes_per_s=None,
        sites=tuple(dict.fromkeys(thread.sites)),
        comm=thread.comm,
    )
