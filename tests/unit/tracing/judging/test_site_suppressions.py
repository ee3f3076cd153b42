"""Suppressed call sites: in no list, in every total, and counted by pattern."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bpfleakd.analysis.suppressions import parse_suppressions
from bpfleakd.model.code.stack import NamedStack
from bpfleakd.model.report import SortKey, SuppressedSites
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.queries.report import Reporter
from bpfleakd.tracing.judging.site_suppressions import SiteSuppressions
from bpfleakd.tracing.traced_process import TracedProcess

from ...queries.test_report import heap, named
from ..doubles import NS_PER_S, View, a_traced

NOW_NS = 100 * NS_PER_S


def a_traced_with(patterns: str, *keys: SiteKey) -> TracedProcess:
    """Site n of it has n * 100 bytes in n blocks, and the function f<n>."""
    sites = {key: (key.stack_id * 100, key.stack_id, key.stack_id * 100, key.stack_id) for key in keys}
    traced = a_traced(sites, began_ns=NOW_NS - NS_PER_S, now_ns=NOW_NS)
    traced.suppressions = SiteSuppressions(parse_suppressions(patterns, "mine"))
    return traced


def by_number(keys: Iterable[SiteKey]) -> dict[SiteKey, NamedStack]:
    return {key: named(f"f{key.stack_id}", f"{key.kind}-{key.stack_id}") for key in keys}


def report_of(traced: TracedProcess, limit: int | None = None, *, suppress: bool = True):
    reporter = Reporter(window_s=10, attach_method="session")
    return reporter.report(View(traced, names=by_number), NOW_NS, SortKey.LIVE, limit, suppress=suppress)  # type: ignore[arg-type]


def test_left_out_and_counted() -> None:
    """The totals have it all, and without suppressions the list does."""
    traced = a_traced_with("leak:^f1$\nleak:^f[\nleak:^f2", *map(heap, (1, 2, 3, 4)))
    report = report_of(traced)
    assert [site.function for site in report.sites] == ["f4", "f3"]
    assert report.suppressed == {"^f1$": SuppressedSites(1, 100, 1), "^f2": SuppressedSites(1, 200, 2)}
    assert report.process.live_bytes == 1_000
    whole = report_of(traced, suppress=False)
    assert ([site.function for site in whole.sites], whole.suppressed) == (["f4", "f3", "f2", "f1"], {})


def test_a_list_is_as_long_as_asked_for() -> None:
    """However many of the largest are suppressed."""
    traced = a_traced_with("leak:^f1*", *map(heap, (2, 3, *range(100, 200))))
    report = report_of(traced, 2)
    assert [site.function for site in report.sites] == ["f3", "f2"]
    assert report.suppressed["^f1*"].sites == 100


def test_files_are_in_no_total() -> None:
    """A program may map ever more files on purpose: their call site can be suppressed, and has no bytes."""
    traced = a_traced_with("leak:^f1$", SiteKey(AllocationKind.FILE, 1), heap(2))
    report = report_of(traced)
    assert [site.function for site in report.sites] == ["f2"]
    assert report.suppressed == {"^f1$": SuppressedSites(1, 0, 1)}


def test_a_name_that_comes_late() -> None:
    """It is shown until then, and suppressed as soon as it is known."""
    suppressions = SiteSuppressions(parse_suppressions("leak:^late$", "mine"))
    rows = np.array([7])
    nameless = NamedStack(named("early", "x").stack, "x", False)
    assert not suppressions.look_at([(7, nameless)])
    assert (suppressions.unknown(rows).tolist(), suppressions.shown(rows).tolist()) == ([], [7])
    assert suppressions.look_at([(7, named("late", "x"))])
    assert not suppressions.look_at([(7, named("late", "x"))])
    assert suppressions.unknown(rows).tolist() == suppressions.shown(rows).tolist() == []
    assert suppressions.rows.tolist() == [7]


def test_a_row_of_another_site_is_looked_at_again() -> None:
    """The site that had it was suppressed, and is in no sum any more."""
    suppressions = SiteSuppressions(parse_suppressions("leak:^f1$", "mine"))
    site = 0, named("f1", "heap-1")
    assert suppressions.look_at([site])

    suppressions.forget(np.array([0]))
    assert suppressions.rows.tolist() == []
    assert suppressions.unknown(np.array([0])).tolist() == [0]
    assert suppressions.look_at([site])
