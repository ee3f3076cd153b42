"""Reports compared: every change there can be, and figures that add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.analysis.diff import compared
from bpfleakd.model.difference import SiteChange
from bpfleakd.model.report import LeakReport

from ..samples import a_process, a_report, a_site


def a_saved(pid: int = 4_711, **sites: tuple[int, int]) -> LeakReport:
    """A report with all its sites: name -> (bytes, blocks)."""
    rows = tuple(
        a_site(name, site=name, live_bytes=size, live_count=count) for name, (size, count) in sites.items()
    )
    total = sum(size for size, _count in sites.values())
    return a_report(process=a_process(pid, live_bytes=total), sites=rows)


def test_every_change() -> None:
    """The largest gain first; unchanged sites are only counted."""
    before = a_saved(grew=(100, 1), shrank=(90, 3), same=(5, 1), went=(70, 1), empty=(0, 0))
    after = a_saved(23, grew=(150, 1), shrank=(30, 1), same=(5, 1), came=(40, 2), empty=(10, 1))
    report = compared(before, after)
    assert [
        (site.site, site.change.value, site.after_bytes - site.before_bytes) for site in report.sites
    ] == [
        ("grew", "grown", 50),
        ("came", "new", 40),
        ("empty", "new", 10),
        ("shrank", "shrunk", -60),
        ("went", "gone", -70),
    ]
    assert report.unchanged_count == 1
    assert (report.before.pid, report.after.pid) == (4_711, 23)
    assert (report.before.left_out_bytes, report.after.left_out_bytes) == (0, 0)


def test_a_freed_site_that_is_still_listed() -> None:
    """It has no blocks any more: gone."""
    (site,) = compared(a_saved(leak=(7, 1)), a_saved(leak=(0, 0))).sites
    assert (site.change, site.before_count, site.after_count) == (SiteChange.GONE, 1, 0)


def test_fewer_blocks_of_the_same_size() -> None:
    """The number alone is a change too."""
    (site,) = compared(a_saved(leak=(100, 4)), a_saved(leak=(100, 2))).sites
    assert site.change is SiteChange.SHRUNK


def test_what_is_not_in_the_lists() -> None:
    """Said for each report, since it may make a site look new or gone."""
    after = a_saved(leak=(7, 1))
    after = replace(after, process=replace(after.process, live_bytes=30))
    report = compared(a_saved(), after)
    assert (report.before.left_out_bytes, report.after.left_out_bytes) == (0, 23)


SITES = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(1, 9), st.integers(1, 9)))


@given(before=SITES, after=SITES)
def test_figures_add_up(before: dict, after: dict) -> None:
    """The differences add up to the gain of the process, and swapping the two reports negates them."""
    there, back = compared(a_saved(**before), a_saved(**after)), compared(a_saved(**after), a_saved(**before))
    gained = sum(site.after_bytes - site.before_bytes for site in there.sites)
    assert gained == there.after.live_bytes - there.before.live_bytes
    opposite = {"new": "gone", "gone": "new", "grown": "shrunk", "shrunk": "grown"}
    assert {site.site: site.change.value for site in back.sites} == {
        site.site: opposite[site.change.value] for site in there.sites
    }
