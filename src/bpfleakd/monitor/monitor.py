"""The traced processes, all of them: attach, tick, report, detach."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from bpfleakd import __version__, errors
from bpfleakd.analysis.diff import compared
from bpfleakd.analysis.grouping import grouped
from bpfleakd.analysis.merging import merged_sites
from bpfleakd.analysis.persistence import LEAK_AFTER_S
from bpfleakd.analysis.suppressions import NO_SUPPRESSIONS, Suppressions
from bpfleakd.kernel import abi
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.pins import ProcessPins
from bpfleakd.model.blocks import BlocksReport
from bpfleakd.model.daemon import DaemonStats
from bpfleakd.model.difference import ComparedState, DiffReport
from bpfleakd.model.groups import GroupedReport, GroupKey
from bpfleakd.model.history import SavedHistory
from bpfleakd.model.mapping import Mapping
from bpfleakd.model.metrics import MetricsSnapshot, ProcessUsage
from bpfleakd.model.process import ProcessId, ProcessState, TracedProcess, TracingMode
from bpfleakd.model.profile import HeapProfile
from bpfleakd.model.report import LeakReport, SortKey
from bpfleakd.model.scan import ScanReport
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.space import AddressSpaceReport
from bpfleakd.monitor.address_space import AddressSpaces
from bpfleakd.monitor.adoption import Adopter, KeptTraced, keep_traced
from bpfleakd.monitor.attach import Attacher, Attachment
from bpfleakd.monitor.blocks import Blocks, narrowed, without_suppressed
from bpfleakd.monitor.past import Figures, changed_rows, figures_at, memory_rows, report_at
from bpfleakd.monitor.regions import regions_as_blocks
from bpfleakd.monitor.report import Reporter, sorted_sites
from bpfleakd.monitor.sampling import SAMPLED_LIVE_BLOCKS, Sampling, SamplingOptions
from bpfleakd.monitor.scan_reply import ScanReply
from bpfleakd.monitor.scans import PendingScan, ScanOptions, reachable_sites, scan_report
from bpfleakd.monitor.space_feed import SpaceFeed
from bpfleakd.monitor.spaces import AddressMaps
from bpfleakd.monitor.suppressing import SiteSuppressions
from bpfleakd.monitor.table_fill import table_entries
from bpfleakd.monitor.traced import NamedStack, Traced
from bpfleakd.monitor.unwinding import ATTACH_WAIT_S, Unwinding
from bpfleakd.monitor.verdicts import SiteVerdicts
from bpfleakd.symbols.symbolizer import Symbolizer
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.target.identity import read_labels
from bpfleakd.target.mappings import read_mappings
from bpfleakd.target.memory_limits import read_memory_limits
from bpfleakd.target.memory_sampler import read_anonymous_bytes
from bpfleakd.target.process import thread_commands

__all__ = ["Monitor"]

log = structlog.get_logger()

# Reports of processes that ended are kept for so many of them, with so many sites and blocks each.
_ENDED_MAX = 16
_ENDED_WHEN_SHORT = 2
_FINAL_SITES = 100
_FINAL_BLOCKS = 10_000
# A program that leaks everywhere need not fill the log.
_LEAKS_ANNOUNCED = 20
# Sites that changed most between two times.
_COMPARED_SITES = 1_000
# Sites that are named at a time to find those that are suppressed: a millisecond or so each.
_LOOKED_AT = 32


@dataclass(slots=True)
class _Totals:
    ticks: int = 0
    last_tick_s: float = 0.0
    attached: int = 0
    ended: int = 0


class Monitor:
    """Traces processes with loaded programs. `symbolizer_of` makes the symbolizer of a process.

    `top_sites` is how many sites a process has in a snapshot; `unattended_s` after the last tick the programs
    stop to record. `keep_report` is given the last report of each process. `clock_ns` is CLOCK_MONOTONIC,
    which the programs' times are in.
    """

    def __init__(
        self,
        maps: Maps,
        attacher: Attacher,
        unwinding: Unwinding,
        watch_address_spaces: Callable[[bool], None],
        reporter: Reporter,
        symbolizer_of: Callable[[Attachment], Symbolizer],
        *,
        attach_method: str,
        top_sites: int,
        unattended_s: float,
        keep_report: Callable[[ProcessId, LeakReport], None],
        leak_after_s: float = LEAK_AFTER_S,
        sampling: SamplingOptions,
        suppressions: Suppressions = NO_SUPPRESSIONS,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._maps = maps
        self._attacher = attacher
        self._unwinding = unwinding
        self._watch_address_spaces = watch_address_spaces
        self._spaces = AddressMaps(self._is_in_allocator)
        self._feed = SpaceFeed(maps, self._spaces, clock_ns)
        self._memory = AddressSpaces()
        self._reporter = reporter
        self._symbolizer_of = symbolizer_of
        self._attach_method = attach_method
        self._top_sites = top_sites
        self._keep_report = keep_report
        self._unattended_ns = round(unattended_s * 1e9)
        self._leak_after_s = leak_after_s
        self._suppressions = suppressions
        self._clock_ns = clock_ns
        self._started_ns = clock_ns()
        self._traced: dict[int, Traced] = {}
        self._ended: OrderedDict[int, Traced] = OrderedDict()
        # Whose last figures are not in any snapshot yet.
        self._just_ended: list[Traced] = []
        self._totals = _Totals()
        self._sampling = Sampling(maps, sampling)
        # The kernel's sites, as they were read last.
        self._read: tuple[np.ndarray, np.ndarray] = np.empty(0, abi.SITE_KEY), np.empty(0, abi.SITE)

    # Processes come and go

    def attach(
        self,
        pid: int,
        *,
        expected: ProcessId | None = None,
        mode: TracingMode = TracingMode.EXACT,
        live_blocks: int | None = None,
        tables_wait_s: float = ATTACH_WAIT_S,
    ) -> TracedProcess:
        """Start tracing: the process `expected`, if one is, with room for so many blocks.

        EXACT records every block, SAMPLED some, and AUTO all until that costs too much.

        Raises AlreadyAttached and what Attacher.attach raises.
        """
        if pid in self._traced:
            self._end_if_over(self._traced[pid])
        if pid in self._traced:
            raise errors.AlreadyAttached(f"process {pid} is being traced already", "`bpfleakctl ps` shows it")
        self._watch_while(True)
        try:
            attachment = self._attacher.attach(
                pid,
                expected=expected,
                live_blocks=live_blocks,
                live_blocks_max=SAMPLED_LIVE_BLOCKS if mode is TracingMode.SAMPLED else None,
                tables_wait_s=tables_wait_s,
            )
        except errors.BpfleakdError:
            self._watch_while(bool(self._traced))
            raise
        self._spaces.follow(pid, _mappings_now(attachment))
        self._feed.keep(pid, attachment.pins.record("space"))
        now_ns = self._clock_ns()
        keep_traced(attachment.pins, KeptTraced(now_ns, self._memory.follow(attachment.process)))
        self._beat(now_ns)
        self._sampling.begin(pid, mode, now_ns)
        traced = Traced(
            attachment=attachment,
            symbolizer=self._symbolizer_of(attachment),
            attached_ns=now_ns,
            table=SiteTable(now_ns),
            counters=self._maps.process(pid),
            mode=mode,
            labels=read_labels(pid),
            verdicts=SiteVerdicts(self._leak_after_s),
            suppressions=SiteSuppressions(self._suppressions),
        )
        self._forget_ended(pid)
        self._traced[pid] = traced
        self._totals.attached += 1
        log.info(
            "process.attached",
            pid=pid,
            comm=attachment.process.comm,
            method=self._attach_method,
            probes=len(attachment.probes),
        )
        return self._reporter.row(traced, now_ns)

    def adopt(self, found: Iterable[ProcessPins]) -> list[ProcessId]:
        """Go on with the processes of an earlier daemon; returns those that are to be attached anew."""
        now_ns = self._clock_ns()
        gap_s = round(max(0, now_ns - self._maps.last_beat_ns()) / 1e9, 3)
        adopter = Adopter(
            self._maps,
            self._attacher,
            self._unwinding,
            self._spaces,
            self._feed,
            self._memory,
            gap_s,
            now_ns,
        )
        self._unwinding.restore()
        anew: list[ProcessId] = []
        for pins in found:
            try:
                attachment, kept = adopter.adopt(pins)
            except (ValueError, OSError, errors.BpfleakdError) as error:
                log.warning("process.not-adopted", pid=pins.id.pid, gap_s=gap_s, reason=str(error))
                self._feed.forget(pins.id.pid)
                anew.append(pins.id)
                continue
            self._traced[pins.id.pid] = self._adopted(attachment, kept, now_ns)
        for pid in set(self._maps.pids()) - self._traced.keys():
            self._maps.remove_process(pid)
        self._beat(now_ns)
        if self._traced:
            self._watch_while(True)
            self._settle_adopted(gap_s)
        self._unwinding.drop_unused()
        self._watch_while(bool(self._traced))
        return anew

    def detach(self, pid: int) -> TracedProcess:
        """Stop tracing and forget the process; returns its last figures. Raises NotAttached."""
        if pid in self._ended:
            row = self._reporter.row(self._ended[pid], self._clock_ns())
            self._forget_ended(pid)
            return row
        traced = self._find(pid)
        self._end(traced, ProcessState.DETACHED)
        self._forget_ended(pid)
        return self._reporter.row(traced, self._clock_ns())

    def release(self, pid: int) -> None:
        """Stop tracing a process that is traced, and keep its last report."""
        self._end(self._traced[pid], ProcessState.DETACHED)

    def leave(self) -> None:
        """Close everything, and leave the processes as they are to the next daemon."""
        self._read_sites(self._clock_ns())
        self._feed.save()
        self._beat(self._clock_ns())
        for traced in self._traced.values():
            self._feed.forget(traced.pid)
            self._attacher.let_go(traced.attachment)
            traced.close()
        self._traced.clear()

    def use_suppressions(self, suppressions: Suppressions) -> None:
        """Use these from now on; the reports of processes that ended stay as they are."""
        self._suppressions = suppressions
        for traced in self._traced.values():
            traced.suppressions = SiteSuppressions(suppressions)

    def mode_of(self, pid: int) -> TracingMode | None:
        """How a process is traced; None if it is not."""
        traced = self._traced.get(pid)
        return traced.mode if traced else None

    def still_traced(self, pid: int) -> bool:
        """Whether a process is traced, after a look whether it has ended or called exec meanwhile."""
        if pid in self._traced:
            # Only the state: the next tick compares the other counters with those of the last.
            self._end_if_over(self._traced[pid], self._maps.process(pid).state)
        return pid in self._traced

    def usages(self) -> list[tuple[int, int, int, int]]:
        """Of each traced process, as of the last tick: pid, runs into probes, blocks recorded, call sites."""
        return [
            (pid, traced.counters.probe_hits, traced.counters.recorded, traced.table.used_count)
            for pid, traced in self._traced.items()
        ]

    def set_level(self, pid: int, level: int) -> None:
        """Record the blocks of a process more sparsely the higher the level; 0 is as its mode says."""
        traced = self._traced.get(pid)
        if traced is not None:
            self._sampling.set_level(pid, level, traced.counters, self._clock_ns())

    def shed_caches(self) -> None:
        """Let go of names, and of the reports of processes that ended but the last ones."""
        for traced in self._traced.values():
            traced.shed_caches()
        while len(self._ended) > _ENDED_WHEN_SHORT:
            self._ended.popitem(last=False)

    def traced_count(self) -> int:
        """How many processes are traced."""
        return len(self._traced)

    def close(self) -> None:
        """Detach from everything."""
        for pid in list(self._traced):
            self.detach(pid)
        for pid in list(self._ended):
            self._forget_ended(pid)

    # Time passes

    def tick(self) -> float:
        """Read the counters of all sites, notice ends and execs; returns the seconds that it took."""
        began_ns = self._clock_ns()
        self._beat(began_ns)
        self._read_sites(began_ns)
        self._unwinding.poll()
        for traced in list(self._traced.values()):
            self._end_if_over(traced)
        for traced in self._traced.values():
            now_ns = self._clock_ns()
            memory_bytes = read_anonymous_bytes(traced.attachment.process.id)
            traced.verdicts.note_memory(now_ns, traced.table.began_ns, memory_bytes)
            if traced.verdicts.is_due(now_ns):
                self._judge(traced)
        took_s = (self._clock_ns() - began_ns) / 1e9
        self._totals.ticks += 1
        self._totals.last_tick_s = took_s
        return took_s

    # Questions

    def processes(self) -> tuple[TracedProcess, ...]:
        """Every process that is traced, then those that ended lately."""
        now_ns = self._clock_ns()
        return tuple(
            self._reporter.row(traced, now_ns) for traced in (*self._traced.values(), *self._ended.values())
        )

    def report(self, pid: int, *, limit: int | None, sort: SortKey, suppress: bool = True) -> LeakReport:
        """The largest sites of a process, or its last report if it ended. Raises NotAttached.

        Sites that a suppression fits are left out, unless `suppress` is false.
        """
        traced = self._find(pid)
        final = traced.final if suppress else traced.final_unsuppressed
        if final is not None:
            return replace(final, sites=sorted_sites(final.sites, sort, limit))
        self._read_sites(self._clock_ns())
        return self._live_report(traced, limit, sort, suppress=suppress)

    def groups(
        self, pid: int, *, by: GroupKey, limit: int | None, sort: SortKey, suppress: bool = True
    ) -> GroupedReport:
        """All sites of a process in groups, or those of its last report if it ended. Raises NotAttached."""
        report = self.report(pid, limit=None, sort=sort, suppress=suppress)
        return grouped(report, by, sort=sort, limit=limit)

    def profile(self, pid: int) -> HeapProfile:
        """All sites of a process with the files that it maps, or as it was at its end. Raises NotAttached."""
        report = self.report(pid, limit=None, sort=SortKey.LIVE)
        traced = self._find(pid)
        code = traced.symbolizer.code_mappings() if traced.final is None else traced.final_code
        return HeapProfile(time.time(), report, code)

    def blocks(
        self, pid: int, *, site: str | None, older_than_s: float, limit: int, suppress: bool = True
    ) -> BlocksReport:
        """The outstanding blocks of a process, or those kept if it ended. Raises NotAttached, NoSuchSite.

        Those of sites that a suppression fits are left out, unless `suppress` is false or it is that `site`.
        """
        traced = self._find(pid)
        if traced.final_blocks is not None:
            kept = traced.final_blocks
            if suppress and site is None:
                kept = without_suppressed(kept, traced.suppressions)
            return narrowed(kept, site=site, older_than_s=older_than_s, limit=limit)
        self._read_sites(self._clock_ns())
        traced.note_threads(thread_commands(pid))
        if suppress:
            self._look_for_suppressed(traced)
        return self._blocks(traced, site=site, older_than_s=older_than_s, limit=limit, suppress=suppress)

    def begin_scan(self, pid: int, options: ScanOptions) -> PendingScan:
        """Prepare a scan for lost blocks. Raises NotAttached, NoSuchProcess if it ended."""
        return PendingScan(self._find_with_memory(pid), self._maps, options)

    def finish_scan(self, scan: PendingScan, reply: ScanReply) -> ScanReport:
        """What a scan has found. Raises NoSuchProcess if the process has ended meanwhile."""
        traced, now_ns = scan.traced, self._clock_ns()
        if self._find_with_memory(traced.pid) is not traced:
            raise _memory_is_gone(traced.pid)
        self._read_sites(now_ns)
        traced.thread_names.update(thread_commands(traced.pid))
        traced.reachable = reachable_sites(reply)
        traced.scanned_ns = reply.now_ns
        return scan_report(
            traced,
            scan.options,
            reply,
            self._reporter.summary(traced, now_ns),
            lambda keys: self._name(traced, keys),
        )

    def history(self, pid: int, *, limit: int | None) -> SavedHistory:
        """What the verdicts on a process are made of. Raises NotAttached, and NoSuchProcess if it ended."""
        traced = self._find_with_memory(pid)
        self._read_sites(self._clock_ns())
        sites = self._reporter.ranked_sites(
            traced, lambda keys: self._name(traced, keys), self._clock_ns(), SortKey.VERDICT, limit
        )
        limits = read_memory_limits(pid)
        comm = traced.attachment.process.comm
        self._look_for_suppressed(traced)
        hidden = traced.suppressions.rows
        return traced.verdicts.history(traced.table, self._all_blocks(traced), limits, sites, comm, hidden)

    def compare(
        self, pid: int, *, from_ago_s: float | None, to_ago_s: float, limit: int = _COMPARED_SITES
    ) -> DiffReport:
        """What changed in a process between two times (None: its start), at most `limit` call sites.

        Raises NotAttached, NoSuchProcess if it ended, and NoSuchTime.
        """
        traced = self._find_with_memory(pid)
        now_ns = self._clock_ns()
        self._read_sites(now_ns)
        table, adopted = traced.table, traced.adopted_count > 0
        before, after = (
            figures_at(table, ago_s, now_ns, pid=pid, was_adopted=adopted) for ago_s in (from_ago_s, to_ago_s)
        )
        changed = changed_rows(before, after)
        while self._look_for_suppressed(traced, traced.suppressions.shown(changed)[:limit].tolist()):
            pass
        rows = traced.suppressions.shown(changed)[:limit].tolist()
        named = self._reporter.sites(traced, lambda keys: self._name(traced, keys), rows, now_ns)
        process, sites = self._reporter.summary(traced, now_ns), dict(zip(rows, named, strict=True))
        reports = (report_at(table, process, sites, figures) for figures in (before, after))
        merged = (replace(report, sites=tuple(merged_sites(report.sites))) for report in reports)
        found = compared(*merged, (before.source, after.source))
        used = int(((before.live_count > 0) | (after.live_count > 0)).sum())
        hidden = memory_rows(table)
        hidden[np.setdiff1d(np.arange(len(table)), np.setdiff1d(changed, rows))] = False

        def stated(state: ComparedState, figures: Figures) -> ComparedState:
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
        """What the memory of a process is made of. Raises NotAttached, and NoSuchProcess if it ended."""
        traced = self._find_with_memory(pid)
        now_ns = self._clock_ns()
        self._read_sites(now_ns)
        return self._memory.report(
            pid,
            self._spaces.map_of(pid),
            traced.table,
            attached_s=(now_ns - traced.attached_ns) / 1e9,
            events_lost=traced.counters.losses["event_full"],
        )

    def stats(self) -> DaemonStats:
        """The daemon's own figures."""
        return DaemonStats(
            version=__version__,
            attach_method=self._attach_method,
            uptime_s=(self._clock_ns() - self._started_ns) / 1e9,
            ticks=self._totals.ticks,
            last_tick_s=self._totals.last_tick_s,
            processes_attached_total=self._totals.attached,
            processes_ended_total=self._totals.ended,
        )

    def snapshot(self) -> MetricsSnapshot:
        """What the metrics are made of, as of the last tick and without a census.

        Taken at every tick, since it names the largest sites while the process is there to be asked. Of one
        that was detached and runs on, it has the last report; of one that has ended, once.
        """
        now_ns = self._clock_ns()
        top_sites = {}
        usage = {}
        for traced in self._traced.values():
            threads = thread_commands(traced.pid)
            traced.note_threads(threads)
            anonymous_bytes = read_anonymous_bytes(traced.attachment.process.id)
            usage[traced.pid] = ProcessUsage(anonymous_bytes, len(threads))
            top_sites[traced.pid] = self._reporter.report(
                traced, lambda keys, t=traced: self._name(t, keys), now_ns, SortKey.VERDICT, self._top_sites
            ).sites
        kept, self._just_ended = self._just_ended, []
        told = {id(traced) for traced in kept}
        kept += [each for each in self._ended.values() if id(each) not in told and _runs_on(each)]
        for traced in kept:
            if traced.final is not None and traced.pid not in top_sites:
                top_sites[traced.pid] = sorted_sites(traced.final.sites, SortKey.VERDICT, self._top_sites)
        rows = tuple(self._reporter.row(traced, now_ns) for traced in (*self._traced.values(), *kept))
        entries = table_entries(
            *self._read,
            exact=[row.process.pid for row in rows if row.process.mode == TracingMode.EXACT],
            processes=len(self._traced),
            all_sites=sum(len(traced.table) for traced in self._traced.values()),
            threads=sum(process.threads for process in usage.values()),
        )
        return MetricsSnapshot(
            self.stats(),
            rows,
            top_sites,
            usage=usage,
            verdicts={
                traced.pid: traced.process_verdict
                for traced in self._traced.values()
                if traced.process_verdict is not None
            },
            table_entries=entries,
            ring_used_share=self._feed.used_share,
        )

    # Inside

    def _find(self, pid: int) -> Traced:
        traced = self._traced.get(pid) or self._ended.get(pid)
        if traced is None:
            raise errors.NotAttached(f"process {pid} is not being traced", f"bpfleakctl attach {pid}")
        return traced

    def _find_with_memory(self, pid: int) -> Traced:
        traced = self._find(pid)
        if traced.state is ProcessState.DETACHED:
            raise errors.NotAttached(
                f"process {pid} is not being traced any more", f"bpfleakctl attach {pid}"
            )
        if traced.final is not None:
            raise _memory_is_gone(pid)
        return traced

    def _watch_while(self, wanted: bool) -> None:
        try:
            self._watch_address_spaces(wanted)
        except errors.KernelError as error:
            log.warning("space.not-watched", reason=error.message, hint=error.hint)

    def _beat(self, now_ns: int) -> None:
        self._maps.beat(now_ns, self._unattended_ns)

    def _adopted(self, attachment: Attachment, kept: KeptTraced, now_ns: int) -> Traced:
        return Traced(
            attachment=attachment,
            symbolizer=self._symbolizer_of(attachment),
            attached_ns=kept.attached_ns,
            # Growth is that since now: nobody has written down how it was before.
            table=SiteTable(now_ns),
            verdicts=SiteVerdicts(self._leak_after_s),
            suppressions=SiteSuppressions(self._suppressions),
            counters=self._maps.process(attachment.process.id.pid),
            mode=self._sampling.resume(attachment.process.id.pid, now_ns),
            adopted_count=kept.adopted_count,
            gap_s=kept.gap_s,
        )

    def _settle_adopted(self, gap_s: float) -> None:
        """Take in what waited, probe what came, and end what ended meanwhile."""
        self._read_sites(self._clock_ns())
        for traced in list(self._traced.values()):
            log.info(
                "process.adopted",
                pid=traced.pid,
                comm=traced.attachment.process.comm,
                gap_s=gap_s,
                live_bytes=traced.table.totals.live_bytes,
                losses={reason: count for reason, count in traced.counters.losses.items() if count},
            )
            if not traced.is_gone:
                self._follow_libraries(traced)
            self._end_if_over(traced)

    def _read_sites(self, now_ns: int) -> None:
        # First, so that a peak of the heap can be told from those that the events bring.
        counters = {pid: self._maps.process(pid) for pid in self._traced}
        for pid in self._feed.read():
            if pid in self._traced:
                self._follow_libraries(self._traced[pid])
        keys, sites = self._read = self._maps.sites()
        columns = np.stack([sites[name].astype(np.int64) for name in COUNTERS], axis=1)
        for pid, traced in self._traced.items():
            rows = np.flatnonzero(keys["tgid"] == pid)
            site_keys = [
                SiteKey(abi.KINDS[kind], stack_id)
                for kind, stack_id in zip(
                    keys["kind"][rows].tolist(), keys["stack_id"][rows].tolist(), strict=True
                )
            ]
            if not traced.is_gone:
                self._spaces.repair(pid, traced.counters.losses["event_full"])
            space = self._spaces.map_of(pid)
            traced.unrecorded_regions = space.unrecorded_count if space else 0
            space_keys, space_columns = space.counters() if space else ([], columns[:0])
            traced.table.update(
                now_ns, site_keys + space_keys, np.concatenate([columns[rows], space_columns])
            )
            before, traced.counters = traced.counters, counters[pid]
            heap_bytes = int(columns[rows, COUNTERS.index("allocated_bytes")].sum())
            self._sampling.adapt(pid, traced.counters, heap_bytes, now_ns)
            heap_peak_bytes = traced.counters.heap_peak_bytes
            traced.verdicts.note(now_ns, traced.counters)
            traced.table.note_peak(self._spaces.peak_live_bytes(pid, heap_peak_bytes, now_ns))
            if traced.counters.library_changes != before.library_changes:
                self._follow_libraries(traced)

    def _follow_libraries(self, traced: Traced) -> None:
        # After exec the libraries are those of another program.
        if traced.is_gone or self._maps.process(traced.pid).state is not RecordingState.RECORDING:
            return
        try:
            mappings = read_mappings(traced.pid)
        except errors.BpfleakdError:
            # It has just ended, which the next tick notices.
            return
        traced.attachment = self._attacher.follow(traced.attachment, mappings)
        traced.symbolizer.update_mappings(mappings)
        self._unwinding.follow(traced.pid, mappings, wait_s=0.0)
        log.info("process.libraries-changed", pid=traced.pid, mappings=len(mappings))

    def _judge(self, traced: Traced) -> None:
        """Compute the verdicts on the sites of a process; leaks that are new go to the log."""
        leaks = traced.verdicts.compute(traced.table, self._all_blocks(traced), self._clock_ns)[
            :_LEAKS_ANNOUNCED
        ]
        self._look_for_suppressed(traced, leaks)
        hidden = traced.suppressions.rows
        limits = read_memory_limits(traced.pid)
        traced.process_verdict = traced.verdicts.of_process(traced.table, limits, hidden)
        leaks = traced.suppressions.shown(np.array(leaks, np.intp)).tolist()
        if not leaks:
            return
        report = self._reporter.sites(traced, lambda keys: self._name(traced, keys), leaks, self._clock_ns())
        for site in report:
            log.warning(
                "site.leak",
                pid=traced.pid,
                comm=traced.attachment.process.comm,
                site=site.site,
                function=site.function,
                leak_bytes_per_s=site.leak_bytes_per_s,
                confidence=site.confidence,
                reason=site.reason,
            )

    def _look_for_suppressed(self, traced: Traced, rows: Iterable[int] = ()) -> bool:
        """Find out which are suppressed: of these rows, of what leaks or grows, and of the largest sites.

        Returns whether there are some that were not known to be.
        """
        table, suppressions = traced.table, traced.suppressions
        used = suppressions.unknown(table.used_rows)
        attention, rates = traced.verdicts.ranks(used)
        live_bytes = table.columns()[used, COUNTERS.index("live_bytes")]
        order = np.lexsort((live_bytes, rates, attention))[::-1]
        wanted = [*rows, *used[order[:_LOOKED_AT]].tolist()]
        keys = table.keys
        named = self._name(traced, [keys[row] for row in wanted])
        return suppressions.look_at((row, keys[row].kind, named[keys[row]]) for row in wanted)

    def _all_blocks(self, traced: Traced) -> Iterator[NDArray[np.void]]:
        """All blocks and mappings of a process: batches of LIVE_BLOCK records, kinds by BLOCK_KINDS."""
        space = self._spaces.map_of(traced.pid)
        return chain(
            (values for _addresses, values in self._maps.live_blocks(traced.pid)),
            [regions_as_blocks(space.live_regions())[1]] if space else [],
        )

    def _live_report(
        self, traced: Traced, limit: int | None, sort: SortKey, *, suppress: bool = True
    ) -> LeakReport:
        now_ns = self._clock_ns()
        traced.take_census(self._maps, self._spaces.map_of(traced.pid), self._clock_ns)
        if traced.verdicts.is_due(now_ns, asked=True):
            self._judge(traced)
        traced.note_threads(thread_commands(traced.pid))
        self._look_for_suppressed(traced)
        report = self._reporter.report(
            traced, lambda keys: self._name(traced, keys), now_ns, sort, limit, suppress=suppress
        )
        hidden = traced.suppressions.rows
        verdict = traced.verdicts.of_process(traced.table, read_memory_limits(traced.pid), hidden)
        return replace(report, process_verdict=verdict)

    def _blocks(self, traced: Traced, **wanted: Any) -> BlocksReport:
        now_ns = traced.ended_ns or self._clock_ns()
        blocks = Blocks(
            traced,
            self._maps,
            self._spaces.map_of(traced.pid),
            lambda keys: self._name(traced, keys),
            now_ns,
        )
        return blocks.report(self._reporter.summary(traced, now_ns), **wanted)

    def _name(self, traced: Traced, keys: Iterable[SiteKey]) -> dict[SiteKey, NamedStack]:
        return traced.named_stacks(self._maps, keys, self._clock_ns())

    def _is_in_allocator(self, pid: int, stack_id: int) -> bool:
        traced = self._traced.get(pid)
        if traced is None:
            return False
        key = SiteKey(AllocationKind.MMAP, stack_id)
        frames = self._name(traced, [key])[key].stack.frames
        probed = traced.probed_functions()
        return any((frame.module, frame.function) in probed for frame in frames)

    def _end_if_over(self, traced: Traced, now: RecordingState | None = None) -> None:
        if (now or traced.counters.state) is RecordingState.EXECED:
            self._end(traced, ProcessState.EXECED)
        elif traced.has_ended():
            self._end(traced, ProcessState.EXITED)
        elif traced.counters.state is RecordingState.UNATTENDED:
            self._begin_anew(traced)

    def _begin_anew(self, traced: Traced) -> None:
        """Frees were missed while the programs had stopped (the daemon was, for too long)."""
        log.warning("process.unattended", pid=traced.pid, live_bytes=traced.table.totals.live_bytes)
        self._end(traced, ProcessState.DETACHED)
        try:
            self.attach(traced.pid)
        except errors.BpfleakdError as error:
            log.warning("process.not-attached", pid=traced.pid, reason=error.message, hint=error.hint)

    def _end(self, traced: Traced, state: ProcessState) -> None:
        """Take the probes out, keep the last report, drop the tables."""
        self._attacher.stop(traced.attachment)
        try:
            self._read_sites(self._clock_ns())
            traced.state = state
            traced.ended_ns = self._clock_ns()
            traced.final = traced.final_unsuppressed = self._live_report(
                traced, _FINAL_SITES, SortKey.VERDICT
            )
            if traced.final.suppressed:
                traced.final_unsuppressed = self._live_report(
                    traced, _FINAL_SITES, SortKey.VERDICT, suppress=False
                )
            traced.final_blocks = self._blocks(
                traced, site=None, older_than_s=0.0, limit=_FINAL_BLOCKS, largest_sites=_FINAL_SITES
            )
            traced.final_code = traced.symbolizer.code_mappings()
        finally:
            # Whatever the report ran into: nothing of the process may stay behind.
            del self._traced[traced.pid]
            self._attacher.clear(traced.attachment)
            self._feed.forget(traced.pid)
            self._memory.forget(traced.pid)
            self._sampling.forget(traced.pid)
            self._watch_while(bool(self._traced))
            traced.close()
        self._ended[traced.pid] = traced
        self._just_ended.append(traced)
        while len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)
        self._totals.ended += 1
        self._keep_report(traced.attachment.process.id, traced.final)
        log.info(
            f"process.{state}",
            pid=traced.pid,
            comm=traced.attachment.process.comm,
            live_bytes=traced.final.process.live_bytes,
            live_count=traced.final.process.live_count,
        )

    def _forget_ended(self, pid: int) -> None:
        self._ended.pop(pid, None)


def _runs_on(traced: Traced) -> bool:
    """Whether a process that was detached still runs; a pid may be another's by now."""
    if traced.state is not ProcessState.DETACHED:
        return False
    return read_anonymous_bytes(traced.attachment.process.id) is not None


def _memory_is_gone(pid: int) -> errors.NoSuchProcess:
    return errors.NoSuchProcess(
        f"process {pid} has ended, and its memory with it", "bpfleakctl top shows its last report"
    )


def _mappings_now(attachment: Attachment) -> Sequence[Mapping]:
    """The mappings after the recording began, so that no change falls between the two."""
    try:
        return read_mappings(attachment.process.id.pid)
    except errors.BpfleakdError:
        return attachment.mappings
