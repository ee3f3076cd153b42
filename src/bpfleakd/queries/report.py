"""Makes reports of traced processes: the largest sites, with names."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.analysis.blame import calling_frame
from bpfleakd.analysis.merging import merged_sites
from bpfleakd.model.code.stack import NamedStack
from bpfleakd.model.process import GO_PROFILE_MODE, ProcessRow, ProcessSummary, TracingMode
from bpfleakd.model.report import LeakReport, SiteReport, SortKey
from bpfleakd.model.resources import DescriptorSite
from bpfleakd.model.site import AllocationKind, SiteCounters, SiteKey, ThreadShare
from bpfleakd.model.verdict import Verdict
from bpfleakd.process.reading.reads import silent_note
from bpfleakd.table.census import SiteCensus
from bpfleakd.table.estimates import bytes_stderr, count_stderr
from bpfleakd.table.site_table import COUNTERS
from bpfleakd.tracing.judging.site_suppressions import SiteSuppressions
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.retained import retained_sites
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.verdicts.growth import collected_window_ns, growth_bytes_per_s, growth_window_ns

_NS_PER_S = 1_000_000_000


_ATTENTION = {Verdict.LEAK: 2, Verdict.GROWING: 1}


def _rank(sort: SortKey, growth: float, counters: SiteCounters | SiteReport) -> tuple[float, float]:
    """The sort key of a site; the second number decides between equals."""
    if sort is SortKey.GROWTH:
        return growth, counters.live_bytes
    return (counters.live_bytes if sort is SortKey.LIVE else counters.live_count), growth


def sorted_sites(sites: Iterable[SiteReport], sort: SortKey, limit: int | None) -> tuple[SiteReport, ...]:
    """The first `limit` sites, largest first."""
    if sort is SortKey.VERDICT:
        by_verdict = sorted(sites, key=_verdict_rank, reverse=True)
        return tuple(by_verdict[:limit])
    ordered = sorted(sites, key=lambda site: _rank(sort, site.growth_bytes_per_s, site), reverse=True)
    return tuple(ordered[:limit])


def _verdict_rank(site: SiteReport) -> tuple[float, float, float]:
    return _ATTENTION.get(site.verdict, 0), site.leak_bytes_per_s, site.live_bytes


class _Ranked(Struct, frozen=True):
    row: int
    key: SiteKey
    counters: SiteCounters
    growth_bytes_per_s: float


class Reporter:
    """Makes reports of a process at one moment, with growth over `window_s`."""

    def __init__(self, window_s: float, attach_method: str) -> None:
        self._window_s = window_s
        self._attach_method = attach_method

    def summary(self, traced: TracedProcess, now_ns: int) -> ProcessSummary:
        """The totals of a process."""
        table = traced.table
        totals = table.totals
        process = traced.attachment.process
        until_ns = traced.ended_ns or now_ns
        return ProcessSummary(
            pid=process.id.pid,
            comm=process.comm,
            exe=process.exe,
            live_bytes=totals.live_bytes,
            live_count=totals.live_count,
            attached_s=round((until_ns - traced.since.attached_ns) / _NS_PER_S, 3),
            mode=_mode(traced),
            state=traced.state,
            allocated_bytes=totals.allocated_bytes,
            allocated_count=totals.allocated_count,
            freed_count=totals.allocated_count - totals.live_count,
            unmatched_frees=traced.counters.unmatched_frees + traced.counters.idle_unmatched_frees,
            growth_bytes_per_s=self._growth(traced),
            temporary_count=totals.temporary_count,
            peak_live_bytes=totals.peak_live_bytes,
            labels=traced.request.labels,
            sample_interval_bytes=_interval_bytes(traced),
            live_bytes_stderr=bytes_stderr(totals.live_bytes_variance),
            live_count_stderr=count_stderr(totals.live_count_variance),
            notes=_notes(traced),
        )

    def row(self, traced: TracedProcess, now_ns: int) -> ProcessRow:
        """A process as a row of `ps`."""
        return ProcessRow(
            process=self.summary(traced, now_ns),
            attach_method=self._attach_method,
            sites=traced.table.used_count,
            probes=traced.attachment.probes,
            losses=traced.losses,
            adopted_count=traced.since.adopted_count,
            gap_s=traced.since.gap_s,
            probe_hits=traced.counters.probe_hits,
            limited=traced.request.limited,
            set_aside=traced.set_aside.reason if traced.set_aside else "",
            request=traced.request,
            process_verdict=traced.final.process_verdict if traced.final else traced.process_verdict,
        )

    def report(
        self,
        view: ProcessView,
        now_ns: int,
        sort: SortKey,
        limit: int | None,
        *,
        suppress: bool = True,
    ) -> LeakReport:
        """The process and its `limit` largest sites.

        Suppressed sites are left out and summed up, unless `suppress` is false.
        """
        traced = view.traced
        suppressions = traced.suppressions if suppress else None
        while True:
            # Different stacks of run-time compiled code may have one fingerprint and become one site, so this
            # reads a few more than the limit.
            ranked = self._ranked(traced, sort, None if limit is None else 2 * limit + 8, suppressions)
            named = view.name([site.key for site in ranked])
            if suppressions is None:
                break
            if not suppressions.look_at((site.row, named[site.key]) for site in ranked):
                break
        if limit is not None:
            others = self._rest_of(traced, ranked, named, suppressions)
            ranked += [site for site, _stack in others]
            named |= {site.key: stack for site, stack in others}
        sites = merged_sites(self._site(traced, site, named[site.key], now_ns) for site in ranked)
        return LeakReport(
            process=self.summary(traced, now_ns),
            sites=sorted_sites(sites, sort, limit),
            losses=traced.losses,
            suppressed=suppressions.sums(traced.table) if suppressions else {},
            build_ids=_build_ids(named.values()),
            managed=traced.heap.heap,
            types=traced.runtimes.types,
            goroutines=traced.goroutines.groups() if traced.goroutines is not None else (),
            resources=traced.resources.uses(),
            descriptor_sites=_descriptor_sites(view, now_ns, limit),
            descriptor_totals=traced.descriptors.totals,
            names_pending=any(stack.stack.pending for stack in named.values()),
        )

    def with_retained(
        self, traced: TracedProcess, report: LeakReport, sort: SortKey, limit: int | None
    ) -> LeakReport:
        """A report with the call sites of memory that is retained in the managed heap.

        Sums over sites do not include them, since their memory belongs to the sites that commit the heap.
        """
        heap = traced.heap.heap
        if heap is None:
            return report
        arenas = [site for site in report.sites if site.kind is AllocationKind.PYTHON]
        retained = retained_sites(traced.runtimes.retained, heap, traced.symbolizer, limit, arenas)
        return replace(report, sites=sorted_sites((*report.sites, *retained), sort, limit))

    def sites(
        self,
        view: ProcessView,
        rows: list[int],
        now_ns: int,
    ) -> list[SiteReport]:
        """The sites in these rows of the table, unmerged."""
        traced = view.traced
        ranked = self._look_at(traced, np.array(rows, np.intp))
        named = view.name([site.key for site in ranked])
        return [self._site(traced, site, named[site.key], now_ns) for site in ranked]

    def ranked_sites(
        self,
        view: ProcessView,
        now_ns: int,
        sort: SortKey,
        limit: int | None,
    ) -> list[tuple[int, SiteReport]]:
        """The `limit` largest sites with their rows in the table, unmerged."""
        rows = [site.row for site in self._ranked(view.traced, sort, limit)]
        return list(zip(rows, self.sites(view, rows, now_ns), strict=True))

    def sites_named(
        self,
        view: ProcessView,
        now_ns: int,
        fingerprint: str,
    ) -> list[tuple[int, SiteReport]]:
        """The sites with a fingerprint, with their rows in the table; only JIT code has more than one."""
        used = view.traced.table.used_rows
        keys = view.traced.table.keys_of(used)
        named = view.name(keys)
        rows = [
            row for row, key in zip(used.tolist(), keys, strict=True) if named[key].fingerprint == fingerprint
        ]
        return list(zip(rows, self.sites(view, rows, now_ns), strict=True))

    def _rest_of(
        self,
        traced: TracedProcess,
        ranked: list[_Ranked],
        named: dict[SiteKey, NamedStack],
        suppressions: SiteSuppressions | None,
    ) -> list[tuple[_Ranked, NamedStack]]:
        """Other rows that belong to these sites, so figures do not depend on the number of shown sites.

        Sites with one fingerprint have the same names, so nothing needs to be named.
        """
        known = traced.charging.rows_by_site(traced.table)
        stacks = {(site.key.kind, named[site.key].fingerprint): named[site.key] for site in ranked}
        looked_at = {site.row for site in ranked}
        found = {
            row: stack
            for label, stack in stacks.items()
            for row in known.get(label, ())
            if row not in looked_at
        }
        rows = np.array(list(found), np.intp)
        if suppressions is not None:
            rows = suppressions.shown(rows)
        return [(site, found[site.row]) for site in self._look_at(traced, rows)]

    def _growth(self, traced: TracedProcess) -> float | None:
        """Bytes per second of all sites together; None while unknown."""
        table = traced.table
        if traced.verdicts.observed.collected_ns is not None:
            growth = self._growth_of(traced, table.memory_rows)
            return None if growth is None or np.isnan(growth).any() else float(growth.sum())
        window_ns = growth_window_ns(table.read_ns, self._window_s)
        if window_ns is None:
            return None
        before, now = map(table.total_history.at, window_ns)
        return growth_bytes_per_s(now - before, *window_ns)

    def _growth_of(self, traced: TracedProcess, rows: NDArray[np.intp]) -> NDArray[np.float64] | None:
        """Bytes per second of the sites in these rows; None while unknown, NaN where it is."""
        table, collected_ns = traced.table, traced.verdicts.observed.collected_ns
        edges_ns = table.read_ns
        window_ns = growth_window_ns(edges_ns, self._window_s)
        if window_ns is None:
            return None
        growth = growth_bytes_per_s(table.timeline.gained_bytes(rows, window_ns[0]), *window_ns)
        if collected_ns is None:
            return growth
        # Figures of sites without individual blocks change only at collections.
        found = collected_window_ns(edges_ns, collected_ns, self._window_s)
        if found is None:
            return np.where(table.have_blocks(rows), growth, np.nan)
        since_ns, *between_ns = found
        of_heap = growth_bytes_per_s(table.timeline.gained_bytes(rows, since_ns), *between_ns)
        return np.where(table.have_blocks(rows), growth, of_heap)

    def _look_at(self, traced: TracedProcess, rows: NDArray[np.intp]) -> list[_Ranked]:
        table, growth = traced.table, self._growth_of(traced, rows)
        if growth is None:
            growth = np.zeros(len(rows))
        rates = np.nan_to_num(growth).tolist()
        return [
            _Ranked(row, key, table.counters(key), bytes_per_s)
            for row, key, bytes_per_s in zip(rows.tolist(), table.keys_of(rows), rates, strict=True)
        ]

    def _ranked(
        self,
        traced: TracedProcess,
        sort: SortKey,
        limit: int | None,
        suppressions: SiteSuppressions | None = None,
    ) -> list[_Ranked]:
        """The `limit` sites to examine; the growth of all sites is only computed to sort by it."""
        table = traced.table
        columns = table.columns()
        rows = table.used_rows if suppressions is None else suppressions.shown(table.used_rows)
        if sort is SortKey.VERDICT and limit is not None:
            attention, rates = traced.verdicts.ranks(rows)
            live_bytes = columns[rows, COUNTERS.index("live_bytes")]
            rows = rows[np.lexsort((live_bytes, rates, attention))[::-1][:limit]]
        elif sort is not SortKey.GROWTH and limit is not None:
            column = columns[rows, COUNTERS.index("live_bytes" if sort is SortKey.LIVE else "live_count")]
            rows = rows[np.argsort(-column, kind="stable")[:limit]]
        sites = self._look_at(traced, rows)
        if limit is None or sort is SortKey.VERDICT:
            return sites
        return heapq.nlargest(
            limit, sites, key=lambda site: _rank(sort, site.growth_bytes_per_s, site.counters)
        )

    def _site(self, traced: TracedProcess, site: _Ranked, named: NamedStack, now_ns: int) -> SiteReport:
        blamed = traced.charging.charged(site.key, named.stack.frames)
        census = traced.census.get(site.key) if traced.census else None
        counters = site.counters
        verdict = traced.verdicts.of(site.row, counters.live_count, counters.allocated_count)
        verdict = traced.heap.on_site(site.key, named.stack.frames, verdict, site.row)
        return SiteReport(
            site=named.fingerprint,
            kind=site.key.kind,
            function=blamed.function if blamed else None,
            module=blamed.module if blamed else None,
            location=blamed.location if blamed else None,
            live_bytes=site.counters.live_bytes,
            live_count=site.counters.live_count,
            allocated_bytes=site.counters.allocated_bytes,
            allocated_count=site.counters.allocated_count,
            growth_bytes_per_s=site.growth_bytes_per_s,
            oldest_age_s=_age_s(census, now_ns) if census else None,
            threads=_thread_shares(census, traced.thread_names),
            stack=named.stack.frames,
            truncated=named.stack.truncated,
            temporary_count=site.counters.temporary_count if site.key.kind is AllocationKind.HEAP else None,
            peak_live_bytes=site.counters.peak_live_bytes,
            verdict=verdict.verdict,
            confidence=verdict.confidence,
            reason=verdict.reason,
            leak_bytes_per_s=verdict.leak_bytes_per_s,
            reachable=traced.reachable.get(site.key),
            live_bytes_stderr=bytes_stderr(site.counters.live_bytes_variance),
            live_count_stderr=count_stderr(site.counters.live_count_variance),
            scanned_age_s=_scanned_age_s(traced, site.key, now_ns),
            types=traced.block_types.of(site.key),
            function_start=blamed.function_start if blamed else None,
            called_by=calling_frame(named.stack.frames, blamed),
        )


def _descriptor_sites(view: ProcessView, now_ns: int, limit: int | None) -> tuple[DescriptorSite, ...]:
    """The `limit` call sites whose open descriptors grow fastest, then those with the most."""
    sites = view.traced.descriptors.sites()[:limit]
    named = view.name([site.key for site in sites])
    found = []
    for site in sites:
        stack = named[site.key].stack
        blamed = view.traced.charging.charged(site.key, stack.frames)
        found.append(
            DescriptorSite(
                site=named[site.key].fingerprint,
                function=blamed.function if blamed else None,
                module=blamed.module if blamed else None,
                location=blamed.location if blamed else None,
                open_count=site.open_count,
                opened_count=site.opened_count,
                growth_per_min=site.growth_per_min,
                oldest_age_s=round(max(0, now_ns - site.oldest_born_ns) / _NS_PER_S, 3),
                verdict=site.verdict.verdict,
                confidence=site.verdict.confidence,
                stack=stack.frames,
                truncated=stack.truncated,
                shares=site.shares,
                called_by=calling_frame(stack.frames, blamed),
            )
        )
    return tuple(found)


def _build_ids(named: Iterable[NamedStack]) -> dict[str, str]:
    """Build-ids by file."""
    return {
        frame.module: build_id
        for one in named
        for frame, build_id in zip(one.stack.frames, one.stack.build_ids, strict=True)
        if frame.module is not None and build_id is not None
    }


def _notes(traced: TracedProcess) -> tuple[str, ...]:
    """Sentences on missing data of a process."""
    silent = silent_note(traced.pid)
    of_go = traced.go.notes if traced.go is not None else ()
    notes = [*traced.runtimes.notes, *of_go, *traced.attachment.go.unread, *([silent] if silent else ())]
    if removed := traced.counters.sites_removed:
        notes.append(
            f"{removed:,} call sites without live blocks were removed to make room;"
            " the totals include what they allocated"
        )
    return tuple(notes)


def _mode(traced: TracedProcess) -> str:
    if _is_gos(traced):
        return GO_PROFILE_MODE
    if traced.attachment.is_inside:
        return TracingMode.INSIDE.value
    return (TracingMode.SAMPLED if traced.counters.was_sampled else TracingMode.EXACT).value


def _is_gos(traced: TracedProcess) -> bool:
    """Whether it is a Go program, rather than a program with a Go library."""
    return traced.go is not None and not traced.go.is_library


def _interval_bytes(traced: TracedProcess) -> int | None:
    if traced.go is not None and _is_gos(traced):
        return traced.go.rate_bytes or None
    return traced.counters.sample_interval_bytes or None


def _age_s(census: SiteCensus, now_ns: int) -> float:
    # The census is taken a little after `now_ns`, and includes blocks born in between.
    return round(max(0, now_ns - census.oldest_born_ns) / _NS_PER_S, 3)


def _scanned_age_s(traced: TracedProcess, key: SiteKey, now_ns: int) -> float | None:
    if traced.scanned_ns is None or key not in traced.reachable:
        return None
    return round(max(0, now_ns - traced.scanned_ns) / _NS_PER_S, 3)


def _thread_shares(census: SiteCensus | None, names: dict[int, str]) -> tuple[ThreadShare, ...]:
    if census is None:
        return ()
    shares = (
        ThreadShare(tid, names.get(tid, ""), live_bytes, round(census.live_count_by_tid[tid]))
        for tid, live_bytes in census.live_bytes_by_tid.items()
    )
    return tuple(sorted(shares, key=lambda share: (-share.live_bytes, share.tid)))
