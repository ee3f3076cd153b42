"""Reports: the right sites in the right order, and no figure lost or shown twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.model.code.stack import Frame, FrameKind, NamedStack, Stack, StackEnd
from bpfleakd.model.process import ProcessState
from bpfleakd.model.report import LeakReport, SortKey
from bpfleakd.model.site import AllocationKind, SiteKey, ThreadShare
from bpfleakd.model.verdict import Verdict
from bpfleakd.queries.report import Reporter, sorted_sites
from bpfleakd.table.census import SiteCensus
from bpfleakd.table.site_table import COUNTERS
from bpfleakd.tracing.traced_process import TracedProcess

from ..samples import a_site
from ..tracing.doubles import NS_PER_S, View, a_traced, counter_rows

NOW_NS = 100 * NS_PER_S
Namer = Callable[[Iterable[SiteKey]], dict[SiteKey, NamedStack]]


def heap(stack_id: int) -> SiteKey:
    return SiteKey(AllocationKind.HEAP, stack_id)


def named(function: str, fingerprint: str, truncated: StackEnd | None = None) -> NamedStack:
    malloc = Frame("malloc", "libc.so.6", 1, None, 1, FrameKind.NATIVE)
    frame = Frame(function, "shop", 2, f"{function}.c:23", 2, FrameKind.NATIVE)
    return NamedStack(Stack((malloc, frame), (None, None), truncated), fingerprint, True)


def by_its_number(keys: Iterable[SiteKey]) -> dict[SiteKey, NamedStack]:
    return {key: named(f"f{key.stack_id}", f"{key.kind}-{key.stack_id}") for key in keys}


def report_of(
    traced: TracedProcess,
    sort: SortKey = SortKey.LIVE,
    limit: int | None = None,
    *,
    name: Namer = by_its_number,
    now_ns: int = NOW_NS,
) -> LeakReport:
    return Reporter(window_s=10, attach_method="session").report(
        View(traced, names=name), now_ns, sort, limit
    )  # type: ignore[arg-type]


def functions(report: LeakReport) -> list[str | None]:
    return [site.function for site in report.sites]


def test_names_that_are_to_come() -> None:
    """One stack that lacks names is enough, if they are to come."""
    traced = a_traced({heap(1): (10, 1, 10, 1), heap(2): (20, 1, 20, 1)})

    def lacking(keys: Iterable[SiteKey]) -> dict[SiteKey, NamedStack]:
        stacks = by_its_number(keys)
        return {
            key: replace(one, stack=replace(one.stack, pending=key == heap(2))) for key, one in stacks.items()
        }

    assert report_of(traced, name=lacking).names_pending
    assert not report_of(traced).names_pending


class TestOrder:
    """The order of sites."""

    def traced(self) -> TracedProcess:
        """f1 is large and old, f2 has many blocks, f3 grows, f4 shrinks."""
        began_ns = NOW_NS - 60 * NS_PER_S
        traced = a_traced(
            {heap(1): (1_000, 1, 1_000, 1), heap(2): (500, 50, 500, 50), heap(4): (900, 9, 900, 9)},
            began_ns=began_ns,
            now_ns=began_ns,
        )
        traced.table.update(NOW_NS - 10 * NS_PER_S, [], counter_rows([])[:0].reshape(0, len(COUNTERS)))
        keys = [heap(3), heap(4)]
        traced.table.update(NOW_NS, keys, counter_rows([(700, 7, 900, 9), (100, 1, 900, 9)]))
        return traced

    @pytest.mark.parametrize(
        ("sort", "expected"),
        [
            (SortKey.LIVE, ["f1", "f3", "f2", "f4"]),
            (SortKey.COUNT, ["f2", "f3", "f1", "f4"]),
            (SortKey.GROWTH, ["f3", "f1", "f2", "f4"]),
        ],
    )
    @pytest.mark.parametrize("limit", [None, 9, 3, 1, 0])
    def test_largest_first(self, sort: SortKey, expected: list[str], limit: int | None) -> None:
        """The largest first by each key, and at most the requested number; ties by the other figure."""
        assert functions(report_of(self.traced(), sort, limit)) == expected[:limit]

    def test_growth_is_that_of_the_window(self) -> None:
        """Bytes a second since ten seconds ago, negative where a site shrank."""
        growth = {site.function: site.growth_bytes_per_s for site in report_of(self.traced()).sites}
        assert growth == {"f1": 0.0, "f2": 0.0, "f3": 70.0, "f4": -80.0}

    def test_growth_of_a_heap_is_that_between_its_collections(self) -> None:
        """Other sites are read at every tick; nothing is known of the sum before two are shown."""
        go = SiteKey(AllocationKind.GO_HEAP, 5)
        began_ns = NOW_NS - 60 * NS_PER_S
        traced = a_traced({go: (900, 1, 900, 1), heap(1): (0, 0, 0, 0)}, began_ns=began_ns, now_ns=began_ns)

        def read(second: int, live_bytes: int, *, collected: bool) -> LeakReport:
            now_ns = began_ns + second * NS_PER_S
            keys = [go, heap(1)] if collected else [heap(1)]
            rows = [(live_bytes, 1, live_bytes, 1)] * collected + [(7 * second, 1, 7 * second, 1)]
            traced.table.update(now_ns, keys, counter_rows(rows))
            traced.verdicts.observed.note_collections(now_ns, int(collected))
            return report_of(traced, now_ns=now_ns)

        # Each shows what the previous one omitted.
        shown = {8: 900, 28: 900 + 23 * 8, 55: 900 + 23 * 28}
        found = [read(second, shown.get(second, 0), collected=second in shown) for second in range(1, 60)]
        growth = [one.process.growth_bytes_per_s for one in found]
        assert set(growth[:54]) == {None}
        assert set(growth[54:]) == {23.0 + 7.0}
        before = {site.function: site.growth_bytes_per_s for site in found[40].sites}
        assert before == {"f5": 0.0, "f1": 7.0}
        assert {site.function: site.growth_bytes_per_s for site in found[-1].sites} == {"f5": 23.0, "f1": 7.0}

    @given(
        live=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=40),
        limit=st.integers(0, 12),
        sort=st.sampled_from(SortKey),
    )
    @settings(deadline=None)
    def test_a_limit_only_cuts(self, live: list[tuple[int, int]], limit: int, sort: SortKey) -> None:
        """With a limit, the figures are the first of those without one."""
        sites = {heap(n): (size, count, size, count) for n, (size, count) in enumerate(live, 1)}
        traced = a_traced(sites, began_ns=NOW_NS - NS_PER_S, now_ns=NOW_NS)

        def ranks(report: LeakReport) -> list[float]:
            figures = {
                SortKey.LIVE: "live_bytes",
                SortKey.COUNT: "live_count",
                SortKey.GROWTH: "growth_bytes_per_s",
                SortKey.VERDICT: "live_bytes",
            }
            return [getattr(site, figures[sort]) for site in report.sites]

        assert ranks(report_of(traced, sort, limit)) == ranks(report_of(traced, sort))[:limit]

    def test_a_report_that_was_kept_is_sorted_again(self) -> None:
        """The last report of a process that ended can be shown by any key, and with any limit."""
        sites = [
            a_site("large", verdict=Verdict.STEADY, live_bytes=100, live_count=1, growth_bytes_per_s=0.0),
            a_site("many", verdict=Verdict.STEADY, live_bytes=10, live_count=10, growth_bytes_per_s=-1.0),
            a_site("growing", verdict=Verdict.STEADY, live_bytes=1, live_count=5, growth_bytes_per_s=7.0),
            a_site("leaking", live_bytes=7, live_count=7, growth_bytes_per_s=5.0, verdict=Verdict.LEAK),
        ]
        for sort, function in zip(SortKey, ("leaking", "growing", "large", "many"), strict=True):
            (site,) = sorted_sites(sites, sort, 1)
            assert site.function == function
        assert len(sorted_sites(sites, SortKey.LIVE, None)) == 4


class TestSites:
    """What a report has for one site."""

    def test_all_of_it(self) -> None:
        """The blamed frame, the counters, the census and the stack are those of the site."""
        traced = a_traced({heap(7): (23, 1, 101, 5)}, now_ns=NOW_NS)
        traced.census = {
            heap(7): SiteCensus(NOW_NS - 7 * NS_PER_S, {4_711: 3, 4_712: 20}, {4_711: 1, 4_712: 4})
        }
        traced.thread_names = {4_711: "main", 4_713: "other"}

        (site,) = report_of(traced, name=lambda _keys: {heap(7): named("leak", "abc", StackEnd.DEPTH)}).sites

        assert (site.site, site.kind, site.truncated) == ("abc", AllocationKind.HEAP, StackEnd.DEPTH)
        assert (site.function, site.module, site.location) == ("leak", "shop", "leak.c:23")
        assert (site.live_bytes, site.live_count, site.allocated_bytes, site.allocated_count) == (
            23,
            1,
            101,
            5,
        )
        assert site.oldest_age_s == 7.0
        assert site.threads == (ThreadShare(4_712, "", 20, 4), ThreadShare(4_711, "main", 3, 1))
        assert [frame.function for frame in site.stack] == ["malloc", "leak"]

    @pytest.mark.parametrize(("kind", "temporary"), [(AllocationKind.HEAP, 3), (AllocationKind.MMAP, None)])
    def test_temporary_blocks_and_the_peak(self, kind: AllocationKind, temporary: int | None) -> None:
        """Temporary blocks exist only in the heap, not for mappings."""
        key = SiteKey(kind, 7)
        traced = a_traced({key: (23, 1, 101, 5, 3 if temporary else 0, 79)})
        report = report_of(traced, name=lambda _keys: {key: named("leak", "abc")})
        (site,) = report.sites
        assert (site.temporary_count, site.peak_live_bytes) == (temporary, 79)
        assert (report.process.temporary_count, report.process.peak_live_bytes) == (temporary or 0, 23)

    def test_without_a_census(self) -> None:
        """Ages and threads are not known then."""
        (site,) = report_of(a_traced({heap(7): (23, 1, 23, 1)})).sites
        assert (site.oldest_age_s, site.threads) == (None, ())

    def test_a_site_whose_blocks_are_all_gone(self) -> None:
        """It has allocated and is shown, without age and threads."""
        traced = a_traced({heap(7): (0, 0, 23, 1)})
        traced.census = {}
        (site,) = report_of(traced).sites
        assert (site.live_count, site.oldest_age_s, site.threads) == (0, None, ())

    def test_blocks_born_during_the_census(self) -> None:
        """The census takes time, and its youngest blocks are younger than the report: none has age -1."""
        traced = a_traced({heap(7): (23, 1, 23, 1)})
        traced.census = {heap(7): SiteCensus(NOW_NS + NS_PER_S, {4_711: 23}, {4_711: 1})}
        (site,) = report_of(traced).sites
        assert site.oldest_age_s == 0.0
        assert str(site.oldest_age_s) == "0.0"

    def test_a_lost_stack(self) -> None:
        """A site whose stack found no room blames no function, and says so."""
        lost = NamedStack(Stack((), (), StackEnd.LOST), "abc", True)
        (site,) = report_of(a_traced({heap(7): (23, 1, 23, 1)}), name=lambda _keys: {heap(7): lost}).sites
        assert (site.function, site.module, site.stack, site.truncated) == (None, None, (), StackEnd.LOST)

    @pytest.mark.parametrize("allocated", [0, 23])
    def test_the_overflow_site(self, allocated: int) -> None:
        """It is there from the beginning, and shown when something went there."""
        count = int(allocated > 0)
        traced = a_traced({heap(0): (allocated, count, allocated, count), heap(7): (1, 1, 1, 1)})
        assert functions(report_of(traced)) == (["f0", "f7"] if allocated else ["f7"])
        assert Reporter(10, "session").row(traced, NOW_NS).sites == 1 + count


class TestMerging:
    """Sites with one fingerprint are one site."""

    def test_figures_add_up(self) -> None:
        """Bytes, blocks, growth and threads are summed, the older age counts."""
        traced = a_traced(
            {heap(1): (23, 1, 100, 4), heap(2): (101, 2, 1_000, 8), heap(3): (7, 7, 7, 7)},
            began_ns=NOW_NS - 4 * NS_PER_S,
            now_ns=NOW_NS,
        )
        traced.census = {
            heap(1): SiteCensus(NOW_NS - 5 * NS_PER_S, {1: 3, 2: 20}, {1: 1, 2: 2}),
            heap(2): SiteCensus(NOW_NS - 9 * NS_PER_S, {2: 1, 3: 100}, {2: 5, 3: 1}),
        }
        same = {heap(1): named("a", "same"), heap(2): named("a", "same"), heap(3): named("b", "other")}

        first, second = report_of(traced, name=lambda _keys: same).sites

        assert (first.site, second.site) == ("same", "other")
        figures = (first.live_bytes, first.live_count, first.allocated_bytes, first.allocated_count)
        assert figures == (124, 3, 1_100, 12)
        assert first.growth_bytes_per_s == 31.0
        assert first.oldest_age_s == 9.0
        threads = [(share.tid, share.live_bytes, share.live_count) for share in first.threads]
        assert threads == [(3, 100, 1), (2, 21, 7), (1, 3, 1)]

    def test_merged_sites_move_up(self) -> None:
        """Two halves that are smaller than another site come before it together, also under a limit."""
        traced = a_traced({heap(1): (60, 1, 60, 1), heap(2): (100, 1, 100, 1), heap(3): (60, 1, 60, 1)})
        same = {heap(1): named("a", "same"), heap(2): named("b", "other"), heap(3): named("a", "same")}
        assert functions(report_of(traced, name=lambda _keys: same)) == ["a", "b"]
        assert functions(report_of(traced, limit=1, name=lambda _keys: same)) == ["a"]

    def test_a_limit_leaves_out_no_part_of_a_site(self) -> None:
        """Rows known to be of a shown site count, however many they are; nothing is named for that."""
        rows = {heap(n): (0, 0, 16, 1) for n in range(2, 101)}
        traced = a_traced({heap(1): (60, 1, 60, 1), **rows, heap(101): (7, 1, 7, 1)})
        of_rows = {key: named("rec_new", "same") for key in traced.table.keys}
        names = {**of_rows, heap(101): named("other", "other")}
        traced.charging.settle(names)
        asked: list[SiteKey] = []

        def name(keys: Iterable[SiteKey]) -> dict[SiteKey, NamedStack]:
            keys = list(keys)
            asked.extend(keys)
            return {key: names[key] for key in keys}

        first, second = report_of(traced, limit=2, name=name).sites
        assert (first.function, first.allocated_count, first.live_count) == ("rec_new", 100, 1)
        assert (second.function, second.allocated_count) == ("other", 1)
        assert len(asked) <= 2 * 2 + 8

    def test_an_age_that_only_one_has(self) -> None:
        """A half without a census does not hide the other's age."""
        traced = a_traced({heap(1): (1, 1, 1, 1), heap(2): (1, 1, 1, 1)})
        traced.census = {heap(2): SiteCensus(NOW_NS - 9 * NS_PER_S, {1: 1}, {1: 1})}
        (site,) = report_of(traced, name=lambda keys: {key: named("a", "same") for key in keys}).sites
        assert site.oldest_age_s == 9.0

    @given(groups=st.lists(st.integers(0, 4), min_size=1, max_size=30))
    @settings(deadline=None)
    def test_nothing_is_lost(self, groups: list[int]) -> None:
        """However sites are merged, the sums over all of them stay the same."""
        sites = {heap(n): (n, 1, 2 * n, 3) for n, _group in enumerate(groups, 1)}
        names = {key: named(f"f{group}", f"g{group}") for key, group in zip(sites, groups, strict=True)}
        shown = report_of(a_traced(sites), name=lambda _keys: names).sites
        assert len(shown) == len(set(groups))
        assert sum(site.live_bytes for site in shown) == sum(counters[0] for counters in sites.values())
        assert sum(site.allocated_count for site in shown) == 3 * len(sites)


class TestSummary:
    """The process in totals."""

    def test_totals(self) -> None:
        """Sums over all sites, however few are shown; freed bytes are the difference."""
        traced = a_traced(
            {heap(1): (23, 1, 100, 4), heap(2): (101, 2, 1_000, 8)},
            began_ns=NOW_NS - 4 * NS_PER_S,
            now_ns=NOW_NS,
        )
        report = report_of(traced, limit=1)
        process = report.process
        assert (process.pid, process.comm, process.exe, process.mode) == (
            4_711,
            "shop",
            "/usr/bin/shop",
            "exact",
        )
        assert (process.live_bytes, process.live_count) == (124, 3)
        assert (process.allocated_bytes, process.allocated_count, process.freed_count) == (1_100, 12, 9)
        assert process.growth_bytes_per_s == 31.0
        assert process.attached_s == 4.0
        assert process.unmatched_frees == 13
        assert report.losses == traced.losses

    def test_time_stops_at_the_end(self) -> None:
        """An ended process was attached until it ended, not until now."""
        traced = a_traced(began_ns=NOW_NS - 60 * NS_PER_S)
        traced.state, traced.ended_ns = ProcessState.EXITED, NOW_NS - 50 * NS_PER_S
        process = Reporter(10, "session").summary(traced, NOW_NS)
        assert (process.state, process.attached_s) == (ProcessState.EXITED, 10.0)

    def test_a_row(self) -> None:
        """`ps` shows the same figures."""
        traced = a_traced({heap(1): (23, 1, 100, 4)})
        reporter = Reporter(10, "multi")
        row = reporter.row(traced, NOW_NS)
        assert row.process == reporter.summary(traced, NOW_NS)
        assert (row.attach_method, row.sites, row.probes) == ("multi", 1, traced.attachment.probes)

    def test_a_process_without_sites(self) -> None:
        """Right after the attach there is nothing, and nothing fails."""
        for sort in SortKey:
            for limit in (None, 0, 10):
                report = report_of(a_traced(), sort, limit, name=by_its_number)
                assert report.sites == ()
                assert report.process.live_bytes == 0
