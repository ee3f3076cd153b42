"""Queries about one traced process, or one that ended recently."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from bpfleakd.analysis.diff import compared
from bpfleakd.analysis.grouping import grouped
from bpfleakd.analysis.merging import merged_sites
from bpfleakd.model.address_space import AddressSpaceReport
from bpfleakd.model.blocks import BlocksReport
from bpfleakd.model.difference import ComparedState, DiffReport
from bpfleakd.model.groups import GroupedReport, GroupKey
from bpfleakd.model.history import StoredHistory
from bpfleakd.model.packed import Packed
from bpfleakd.model.process import ProcessRow, ProcessState
from bpfleakd.model.report import HeapProfile, LeakReport, SortKey
from bpfleakd.model.runtimes.managed import TypesPrice, TypesReport
from bpfleakd.model.runtimes.requested import NamesReport
from bpfleakd.model.scan import ScanReport
from bpfleakd.model.site import AllocationKind
from bpfleakd.process.memory_limits import MemoryLimitReader
from bpfleakd.process.process import thread_commands
from bpfleakd.queries.blocks import Blocks, narrowed, without_suppressed
from bpfleakd.queries.history_at import LiveFigures, changed_rows, figures_at, report_at
from bpfleakd.queries.pinning import sites_that_pin
from bpfleakd.queries.report import Reporter, sorted_sites
from bpfleakd.queries.requested import (
    names_report,
    noted_types,
    perf_map_of,
    sampler_of,
    source_of,
    survivor_sampler_of,
    types_price,
)
from bpfleakd.queries.scan_reply import ScanReply
from bpfleakd.queries.scans import PendingScan, ScanOptions, reachable_sites, scan_report
from bpfleakd.queries.verdict_engine import VerdictEngine
from bpfleakd.runtimes.runtime import HeapSampler, PerfMapWriter, SurvivorSampler, TypeCount, TypeSource
from bpfleakd.tracing.background import Background
from bpfleakd.tracing.observer import TracingObserver
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.traced_processes import memory_is_gone
from bpfleakd.tracing.tracer import Tracer

# The number of the largest sites, and of their blocks, stored for an ended process.
_FINAL_SITES = 100
_FINAL_BLOCKS = 10_000
# Processes whose blocks are read in parallel.
_TYPE_READINGS_MAX = 2
# The sites that changed most between two times.
_COMPARED_SITES = 1_000


class ProcessQueries(TracingObserver):
    """Answers from the current tables, which it updates first, or from the last report."""

    def __init__(self, tracer: Tracer, engine: VerdictEngine, reporter: Reporter) -> None:
        self._tracer = tracer
        self._processes = tracer.processes
        self._engine = engine
        self._reporter = reporter
        self._type_readings = Background("block-types", _TYPE_READINGS_MAX)

    def row(self, traced: TracedProcess) -> ProcessRow:
        """A process as a row of `ps`."""
        return self._reporter.row(traced, self._tracer.clock_ns())

    def report(self, pid: int, *, limit: int | None, sort: SortKey, suppress: bool = True) -> LeakReport:
        """The largest sites of a process, or its last report if it ended. Raises NotAttached.

        Suppressed sites are left out, unless `suppress` is false.
        """
        traced = self._processes.find(pid)
        final = traced.final if suppress else traced.final_unsuppressed
        if final is not None:
            return replace(final, sites=sorted_sites(final.sites, sort, limit))
        self._tracer.collect()
        found = self._live_report(traced, limit, sort, suppress=suppress)
        return self._reporter.with_retained(traced, found, sort, limit)

    def groups(
        self, pid: int, *, by: GroupKey, limit: int | None, sort: SortKey, suppress: bool = True
    ) -> GroupedReport:
        """All sites of a process in groups, or those of its last report if it ended. Raises NotAttached."""
        report = _of_table(self.report(pid, limit=None, sort=sort, suppress=suppress))
        return grouped(report, by, sort=sort, limit=limit)

    def profile(self, pid: int) -> HeapProfile:
        """All sites of a process with its mapped files, or as of its end. Raises NotAttached."""
        report = _of_table(self.report(pid, limit=None, sort=SortKey.LIVE))
        traced = self._processes.find(pid)
        code = traced.symbolizer.code_mappings() if traced.final is None else traced.final_code
        return HeapProfile(time.time(), report, code)

    def blocks(
        self, pid: int, *, site: str | None, older_than_s: float, limit: int, suppress: bool = True
    ) -> BlocksReport:
        """The outstanding blocks of a process, or the stored ones if it ended.

        Blocks of suppressed sites are left out, unless `suppress` is false or it is that `site`. Raises
        NotAttached, NoSuchSite.
        """
        traced = self._processes.find(pid)
        if traced.final_blocks is not None:
            kept = traced.final_blocks.unpacked()
            if suppress and site is None:
                kept = without_suppressed(kept, traced.suppressions)
            return narrowed(kept, site=site, older_than_s=older_than_s, limit=limit)
        self._tracer.collect()
        traced.note_threads(thread_commands(pid))
        self._look_for_types(self._tracer.view(traced))
        if suppress:
            self._engine.look_for_suppressed(self._tracer.view(traced))
        return self._blocks(traced, site=site, older_than_s=older_than_s, limit=limit, suppress=suppress)

    def begin_scan(self, pid: int, options: ScanOptions, *, trust_heap: bool = True) -> PendingScan:
        """Prepare a scan for lost blocks. Raises NotAttached, NoSuchProcess if it ended.

        `trust_heap`: known heap memory outside of blocks has no pointers.
        """
        traced = self._processes.find_with_memory(pid)
        self._tracer.collect()
        view = self._tracer.view(traced)
        return PendingScan(view, options, view.heap_since_attach() if trust_heap else [])

    def finish_scan(self, scan: PendingScan, reply: ScanReply) -> ScanReport | None:
        """The result of a scan; None if memory that was treated as heap was not heap.

        Raises NoSuchProcess if the process has ended meanwhile.
        """
        traced = scan.traced
        if self._processes.find_with_memory(traced.pid) is not traced:
            raise memory_is_gone(traced.pid)
        now_ns = self._tracer.collect()
        view = self._tracer.view(traced)
        heap = view.heap_since_attach()
        if not all(
            any(low <= first and last <= high for low, high in heap) for first, last in reply.dismissed
        ):
            return None
        traced.thread_names.update(thread_commands(traced.pid))
        traced.reachable = reachable_sites(reply)
        traced.scanned_ns = reply.now_ns
        return scan_report(view, scan.options, reply, self._reporter.summary(traced, now_ns))

    def history(
        self, pid: int, *, limit: int | None, site: str | None = None, survivors: bool = True
    ) -> StoredHistory:
        """The input of the verdicts on a process, or on one `site`.

        Without `survivors` no block is read. Raises NotAttached, and NoSuchProcess if it ended.
        """
        traced = self._processes.find_with_memory(pid)
        now_ns = self._tracer.collect()
        view = self._tracer.view(traced)
        if site is None:
            sites = self._reporter.ranked_sites(view, now_ns, SortKey.VERDICT, limit)
        else:
            sites = self._reporter.sites_named(view, now_ns, site)
        limits = MemoryLimitReader().read(pid)
        comm = traced.attachment.process.comm
        self._engine.look_for_suppressed(view)
        hidden = traced.suppressions.rows
        blocks = view.all_blocks() if survivors else None
        return traced.verdicts.history(traced.table, blocks, limits, sites, comm, hidden)

    def compare(
        self, pid: int, *, from_ago_s: float | None, to_ago_s: float, limit: int = _COMPARED_SITES
    ) -> DiffReport:
        """The changes of a process between two times (None: its start), at most `limit` call sites.

        Raises NotAttached, NoSuchProcess if it ended, and NoSuchTime.
        """
        traced = self._processes.find_with_memory(pid)
        now_ns = self._tracer.collect()
        table, adopted = traced.table, traced.table.began_ns > traced.since.attached_ns
        before, after = (
            figures_at(table, ago_s, now_ns, pid=pid, was_adopted=adopted) for ago_s in (from_ago_s, to_ago_s)
        )
        changed = changed_rows(before, after)
        view = self._tracer.view(traced)
        while self._engine.look_for_suppressed(view, traced.suppressions.shown(changed)[:limit].tolist()):
            pass
        rows = traced.suppressions.shown(changed)[:limit].tolist()
        named = self._reporter.sites(view, rows, now_ns)
        process, sites = self._reporter.summary(traced, now_ns), dict(zip(rows, named, strict=True))

        def merged(figures: LiveFigures) -> LeakReport:
            report = report_at(table, process, sites, figures)
            return replace(report, sites=tuple(merged_sites(report.sites)))

        found = compared(merged(before), merged(after), (before.source, after.source))
        used = int(((before.live_count > 0) | (after.live_count > 0)).sum())
        hidden = np.intersect1d(table.memory_rows, np.setdiff1d(changed, rows))

        def stated(state: ComparedState, figures: LiveFigures) -> ComparedState:
            left_out_bytes = int(figures.live_bytes[hidden].sum())
            return replace(state, resolution_s=figures.resolution_s, left_out_bytes=left_out_bytes)

        return replace(
            found,
            before=stated(found.before, before),
            after=stated(found.after, after),
            unchanged_count=used - len(changed),
            left_out_sites=len(changed) - len(rows),
        )

    def address_space(self, pid: int) -> AddressSpaceReport:
        """The memory of a process by use. Raises NotAttached, and NoSuchProcess if it ended."""
        traced = self._processes.find_with_memory(pid)
        now_ns = self._tracer.collect()
        view, memory = self._tracer.view(traced), self._tracer.memory
        report = memory.report(
            pid,
            view.space,
            traced.table,
            traced.heap.heap,
            attached_s=(now_ns - traced.since.attached_ns) / 1e9,
            events_lost=traced.counters.losses["event_full"],
            compiled=traced.runtimes.compiled,
            go=traced.go,
        )
        return replace(report, pinned_by=sites_that_pin(view, memory.pinned(pid)))

    def types_price(self, pid: int) -> TypesPrice:
        """The cost of counting a managed heap's objects. Raises NotAttached, TargetRefused."""
        return types_price(self._processes.find_with_memory(pid))

    def type_source(self, pid: int) -> TypeSource:
        """The counter of a managed heap's objects. Raises NotAttached, TargetRefused."""
        return source_of(self._processes.find_with_memory(pid))

    def note_types(self, pid: int, counts: Sequence[TypeCount], took_s: float) -> TypesReport:
        """The report on a count. Raises NoSuchProcess if the process has ended meanwhile."""
        return noted_types(self._processes.find_with_memory(pid), counts, took_s, self._tracer.clock_ns())

    def names(self, pid: int) -> NamesReport:
        """Which frames of a process' call sites have names. Raises NotAttached, NoSuchProcess."""
        traced = self._processes.find_with_memory(pid)
        return names_report(traced, self.report(pid, limit=None, sort=SortKey.LIVE, suppress=False))

    def perf_map_writer(self, pid: int) -> tuple[str, PerfMapWriter]:
        """The runtime that can write names. Raises NotAttached, TargetRefused."""
        return perf_map_of(self._processes.find_with_memory(pid))

    def hold_perf_map(self, pid: int) -> None:
        """Open the perf map of a process, which may then be removed. Raises NoSuchProcess."""
        self._processes.find_with_memory(pid).symbolizer.hold_perf_map()

    def heap_sampler(self, pid: int) -> tuple[str, str, HeapSampler]:
        """The name of a process, its runtime and the heap sampler. Raises NotAttached, TargetRefused."""
        traced = self._processes.find_with_memory(pid)
        return traced.attachment.process.comm, *sampler_of(traced)

    def survivor_sampler(self, pid: int) -> tuple[str, str, SurvivorSampler]:
        """The same with the sampler of survivors' allocations. Raises NotAttached, TargetRefused."""
        traced = self._processes.find_with_memory(pid)
        return traced.attachment.process.comm, *survivor_sampler_of(traced)

    def is_pending(self, pid: int) -> bool:
        """Whether names that an answer about a process lacked are still to come."""
        traced = self._processes.running.get(pid)
        return traced is not None and (traced.symbolizer.is_pending or traced.block_types.is_pending)

    def lacked_total(self, pid: int) -> int:
        """A count of the answers about a process that lacked names which are still to come."""
        traced = self._processes.running.get(pid)
        return traced.symbolizer.lacked_total + traced.block_types.lacked_total if traced else 0

    def exited(self, view: ProcessView) -> None:
        """Request the names for the last report of the process."""
        self._reporter.report(view, view.clock_ns(), SortKey.VERDICT, _FINAL_SITES, suppress=False)

    def ending(self, view: ProcessView) -> None:
        """Store the data for later queries on a process whose tables are about to be dropped."""
        traced = view.traced
        ended_ns = None if traced.state is ProcessState.DETACHED else traced.ended_ns
        is_settled = ended_ns is not None and traced.verdicts.settle(ended_ns)
        if not is_settled and traced.verdicts.is_due(view.clock_ns(), traced.table.began_ns, asked=True):
            self._engine.evaluate(view)
        elif traced.unannounced:
            self._engine.announce(view)
        final = self._live_report(traced, _FINAL_SITES, SortKey.VERDICT)
        traced.final = self._reporter.with_retained(traced, final, SortKey.VERDICT, _FINAL_SITES)
        traced.final_unsuppressed = traced.final
        if traced.final.suppressed:
            traced.final_unsuppressed = self._live_report(
                traced, _FINAL_SITES, SortKey.VERDICT, suppress=False
            )
        traced.final_blocks = Packed(
            self._blocks(traced, site=None, older_than_s=0.0, limit=_FINAL_BLOCKS, largest_sites=_FINAL_SITES)
        )
        traced.final_code = traced.symbolizer.code_mappings()

    def _live_report(
        self, traced: TracedProcess, limit: int | None, sort: SortKey, *, suppress: bool = True
    ) -> LeakReport:
        view = self._tracer.view(traced)
        now_ns = view.clock_ns()
        self._look_for_types(view)
        view.take_census()
        table = traced.table
        is_due = traced.verdicts.is_due(now_ns, table.began_ns, asked=True)
        if is_due and traced.verdicts.want(now_ns, table.totals.live_count, table.used_count):
            self._engine.evaluate(view)
        traced.note_threads(thread_commands(traced.pid))
        self._engine.look_for_suppressed(view)
        report = self._reporter.report(view, now_ns, sort, limit, suppress=suppress)
        verdict = self._engine.process_verdict(traced, MemoryLimitReader().read(traced.pid))
        if traced.state in (ProcessState.EXITED, ProcessState.EXECED):
            # It no longer reaches a limit.
            verdict = replace(verdict, limit_reached_s=None)
        return replace(report, process_verdict=verdict, oom=traced.oom)

    def _look_for_types(self, view: ProcessView) -> None:
        """Now and then read a sample of the blocks, for the next answer."""
        traced = view.traced
        if traced.state is not ProcessState.TRACED or traced.is_gone:
            return
        sample = traced.block_types.sample(traced.table, traced.verdicts.ranks)
        if sample is not None:
            view.take_census(sample)
            traced.block_types.begin(sample, self._type_readings)

    def _blocks(self, traced: TracedProcess, **wanted: Any) -> BlocksReport:
        now_ns = traced.ended_ns or self._tracer.clock_ns()
        blocks = Blocks(self._tracer.view(traced), now_ns)
        return blocks.report(self._reporter.summary(traced, now_ns), **wanted)


def _of_table(report: LeakReport) -> LeakReport:
    """Drop the sites that are part of other sites' memory."""
    sites = tuple(site for site in report.sites if site.kind is not AllocationKind.MANAGED)
    return replace(report, sites=sites)
