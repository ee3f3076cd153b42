"""Groups of call sites: every grouping keeps the sums."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.analysis.grouping import grouped
from bpfleakd.model.code.stack import StackEnd
from bpfleakd.model.groups import GroupKey, SiteGroup
from bpfleakd.model.report import SiteReport, SortKey
from bpfleakd.model.site import ThreadShare

from ..samples import a_report, a_site, a_stack

FIGURES = ("live_bytes", "live_count", "allocated_bytes", "allocated_count")


def groups_of(
    *sites: SiteReport, by: GroupKey, sort: SortKey = SortKey.LIVE, limit: int | None = None
) -> tuple[SiteGroup, ...]:
    report = a_report(sites=sites)
    answer = grouped(report, by, sort=sort, limit=limit)
    assert (answer.process, answer.losses) == (report.process, report.losses)
    return answer.groups


def of_threads(*shares: ThreadShare, **changes: object) -> SiteReport:
    totals = {name: sum(getattr(share, name) for share in shares) for name in ("live_bytes", "live_count")}
    return a_site(threads=shares, **{**totals, **changes})


_SITES = st.builds(
    lambda number, function, module, figures, threads: a_site(
        function,
        site=f"{number:016x}",
        module=module,
        **dict(zip(FIGURES, figures, strict=True)),
        growth_bytes_per_s=float(figures[0] - 500),
        threads=tuple(ThreadShare(tid, "worker", size, count) for tid, (size, count) in threads.items()),
    ),
    number=st.integers(0, 9),
    function=st.sampled_from(["f", "g", "h", None]),
    module=st.sampled_from(["/lib/a.so", "/lib/b.so", None]),
    figures=st.tuples(*[st.integers(0, 1 << 40)] * 4),
    threads=st.dictionaries(st.integers(1, 4), st.tuples(st.integers(0, 1 << 40), st.integers(0, 99))),
)


def test_functions_without_names_are_groups() -> None:
    """By the place in the file where they begin; sites without a place are one group."""
    starts = [(None, 0x30), (None, 0x30), (None, 0x40), (None, None), ("f", None)]
    sites = [a_site(name, module="shop", function_start=start) for name, start in starts]
    groups = groups_of(*sites, by=GroupKey.FUNCTION)
    assert {group.group for group in groups} == {"shop+0x30", "shop+0x40", None, "f"}


@given(sites=st.lists(_SITES, max_size=20), by=st.sampled_from(GroupKey))
def test_sums_are_those_of_the_sites(sites: list[SiteReport], by: GroupKey) -> None:
    """None is lost or counted twice; threads have only live figures."""
    groups = groups_of(*sites, by=by)
    known = FIGURES[:2] if by is GroupKey.THREAD else FIGURES
    for figure in known:
        assert sum(getattr(group, figure) for group in groups) == sum(getattr(site, figure) for site in sites)
    for group in groups:
        for figure in (*FIGURES, "growth_bytes_per_s"):
            assert (getattr(group, figure) is None) == (by is GroupKey.THREAD and figure not in known)
    assert len({group.group for group in groups}) == len(groups)


def test_by_function() -> None:
    """Sites of one function are one group; those without a name, another."""
    sites = [
        a_site("f", site="1", live_bytes=23, growth_bytes_per_s=1.5),
        a_site("g", site="2", live_bytes=7),
        a_site("f", site="3", live_bytes=101, growth_bytes_per_s=-0.5),
        a_site(None, site="4", live_bytes=1),
    ]
    first, second, third = groups_of(*sites, by=GroupKey.FUNCTION)
    assert (first.group, first.live_bytes, first.growth_bytes_per_s) == ("f", 124, 1.0)
    assert first.sites == ("1", "3")
    assert (second.group, third.group) == ("g", None)
    assert (first.stack, first.comm) == ((), None)


def test_by_module() -> None:
    """The path distinguishes files."""
    sites = [a_site(module="/usr/lib/a.so", live_bytes=2), a_site(module="/opt/lib/a.so", live_bytes=1)]
    assert [g.group for g in groups_of(*sites, by=GroupKey.MODULE)] == ["/usr/lib/a.so", "/opt/lib/a.so"]


def test_by_stack() -> None:
    """Each stack is a row, with all its frames and why it is not whole."""
    sites = [a_site(site="1", live_bytes=2, truncated=StackEnd.DEPTH), a_site(site="2", live_bytes=1)]
    first, second = groups_of(*sites, by=GroupKey.STACK)
    assert (first.group, first.sites, first.stack) == ("1", ("1",), a_stack())
    assert (first.truncated, second.truncated) == (StackEnd.DEPTH, None)


def test_by_thread() -> None:
    """The allocations of each thread at all sites, and at which sites."""
    sites = [
        of_threads(ThreadShare(7, "main", 23, 1), ThreadShare(9, "worker", 101, 2), site="1"),
        of_threads(ThreadShare(7, "main", 1000, 3), site="2"),
    ]
    main, worker = groups_of(*sites, by=GroupKey.THREAD)
    assert (main.group, main.comm, main.live_bytes, main.live_count) == ("7", "main", 1023, 4)
    assert main.sites == ("1", "2")
    assert (worker.group, worker.live_bytes, worker.sites) == ("9", 101, ("1",))


@pytest.mark.parametrize("more", [5, -5])
def test_what_is_of_no_thread(more: int) -> None:
    """Sites and threads are not counted at the same moment: the difference is a group, also below zero."""
    site = of_threads(ThreadShare(7, "main", 23, 1), live_bytes=23 + more)
    groups = {group.group: group for group in groups_of(site, by=GroupKey.THREAD)}
    assert groups["7"].live_bytes == 23
    assert (groups[None].live_bytes, groups[None].comm, groups[None].sites) == (more, None, (site.site,))


def test_a_thread_without_anything_live_has_no_sites() -> None:
    """It is there, with nothing."""
    (group,) = groups_of(of_threads(ThreadShare(7, "main", 0, 0)), by=GroupKey.THREAD)
    assert (group.live_bytes, group.sites) == (0, ())


@pytest.mark.parametrize(
    ("sort", "expected"),
    [(SortKey.LIVE, "large"), (SortKey.COUNT, "many"), (SortKey.GROWTH, "growing")],
)
def test_largest_first(sort: SortKey, expected: str) -> None:
    """By each key, and at most the requested number."""
    sites = [
        a_site("many", live_bytes=10, live_count=10, growth_bytes_per_s=-1.0),
        a_site("large", live_bytes=100, live_count=1, growth_bytes_per_s=0.0),
        a_site("growing", live_bytes=1, live_count=5, growth_bytes_per_s=7.0),
    ]
    (group,) = groups_of(*sites, by=GroupKey.FUNCTION, sort=sort, limit=1)
    assert group.group == expected


def test_threads_are_sorted_by_what_is_live_if_growth_is_asked_for() -> None:
    """Growth is not known of them."""
    site = of_threads(ThreadShare(7, "a", 1, 1), ThreadShare(9, "b", 5, 1))
    assert [g.group for g in groups_of(site, by=GroupKey.THREAD, sort=SortKey.GROWTH)] == ["9", "7"]
