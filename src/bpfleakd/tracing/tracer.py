"""Tracing of processes, from attach to end; the rest of this directory is what it is made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import replace

import structlog

from bpfleakd import errors
from bpfleakd.analysis.callers import NO_RULES, ChargeRules
from bpfleakd.analysis.persistence import LEAK_AFTER_S
from bpfleakd.analysis.suppressions import NO_SUPPRESSIONS, Suppressions
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.pins import ProcessPins
from bpfleakd.model.mapping import Mapping
from bpfleakd.model.process import (
    ProcessId,
    ProcessLabels,
    ProcessRow,
    ProcessState,
    TracingMode,
    TracingRequest,
)
from bpfleakd.model.report import LeakReport
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.process.identity import read_labels
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.memory_sampler import read_anonymous_bytes
from bpfleakd.queries.overview import Overview
from bpfleakd.queries.process_queries import ProcessQueries
from bpfleakd.symbols.symbolizer import Symbolizer
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.address_maps import AddressMaps
from bpfleakd.tracing.address_space_feed import AddressSpaceFeed
from bpfleakd.tracing.adoption import Adopter, TracedProcessCheckpoint, write_traced_process
from bpfleakd.tracing.attach import Attacher, Attachment
from bpfleakd.tracing.checkpoint import read_request, write_request
from bpfleakd.tracing.counter_collector import CounterCollector
from bpfleakd.tracing.history_checkpoint import HistoryCheckpoints, restored_history
from bpfleakd.tracing.memory_breakdown import MemoryBreakdown
from bpfleakd.tracing.report import Reporter
from bpfleakd.tracing.runtimes import ProcessRuntimes
from bpfleakd.tracing.sampling import SAMPLED_LIVE_BLOCKS, Sampling, SamplingOptions
from bpfleakd.tracing.site_charging import SiteCharging, SiteIdentity
from bpfleakd.tracing.site_suppressions import SiteSuppressions
from bpfleakd.tracing.site_verdicts import SiteVerdicts
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.traced_processes import TracedProcesses
from bpfleakd.tracing.unwinding import ATTACH_WAIT_S, Unwinding
from bpfleakd.tracing.verdict_engine import VerdictEngine

__all__ = ["Tracer"]

log = structlog.get_logger()


class Tracer:
    """Traces processes with loaded programs. `symbolizer_of` makes the symbolizer of a process.

    `queries` are those about one process, `overview` shows all of them. `top_sites` is how many sites a
    process has in a snapshot; `unattended_s` after the last tick the programs stop to record. `keep_report`
    is given the last report of each process. `clock_ns` is CLOCK_MONOTONIC, which the programs' times are in.
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
        charge_rules: ChargeRules = NO_RULES,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._maps = maps
        self._attacher = attacher
        self._unwinding = unwinding
        self._watch_address_spaces = watch_address_spaces
        self._symbolizer_of = symbolizer_of
        self._reporter = reporter
        self._attach_method = attach_method
        self._keep_report = keep_report
        self._unattended_ns = round(unattended_s * 1e9)
        self._leak_after_s = leak_after_s
        self._suppressions = suppressions
        self._charge_rules = charge_rules
        self._clock_ns = clock_ns
        self._processes = TracedProcesses()
        self._running = self._processes.running
        self._sampling = Sampling(maps, sampling)
        self._spaces = AddressMaps(self._is_in_allocator)
        self._feed = AddressSpaceFeed(maps, self._spaces, clock_ns)
        self._memory = MemoryBreakdown()
        self._histories = HistoryCheckpoints(clock_ns)
        self._verdict_engine = VerdictEngine(maps, self._spaces, reporter, clock_ns)
        self._collector = CounterCollector(
            maps, attacher, unwinding, self._spaces, self._feed, self._sampling, self._processes
        )
        self.queries = ProcessQueries(
            maps,
            self._processes,
            self._collector,
            self._verdict_engine,
            reporter,
            self._spaces,
            self._memory,
            clock_ns,
        )
        self.overview = Overview(
            self._processes,
            self._collector,
            self._verdict_engine,
            reporter,
            self._feed,
            attach_method=attach_method,
            top_sites=top_sites,
            clock_ns=clock_ns,
        )

    # Processes come and go

    def prepare(self) -> None:
        """Do what the first attach would wait for; that it fails is no reason to stop."""
        try:
            self._attacher.prepare()
        except (OSError, errors.BpfleakdError) as error:
            log.warning("attach.not-prepared", reason=str(error))

    def start(
        self,
        pid: int,
        request: TracingRequest,
        *,
        expected: ProcessId | None = None,
        tables_wait_s: float = ATTACH_WAIT_S,
    ) -> ProcessRow:
        """Start tracing: the process `expected`, if one is, in the way that is requested.

        A request without labels gets those that the process has now. Raises AlreadyAttached and what
        Attacher.attach raises.
        """
        if pid in self._running:
            self._end_if_over(self._running[pid])
        if pid in self._running:
            raise errors.AlreadyAttached(f"process {pid} is being traced already", "`bpfleakctl ps` shows it")
        if request.labels == ProcessLabels():
            request = replace(request, labels=read_labels(pid))
        attachment = self._attacher.attach(
            pid,
            request,
            expected=expected,
            live_blocks_max=SAMPLED_LIVE_BLOCKS if request.mode is TracingMode.SAMPLED else None,
            tables_wait_s=tables_wait_s,
        )
        # Heap first: the links to system calls take their time.
        self._watch_while(True)
        self._spaces.follow(pid, _mappings_now(attachment))
        self._feed.keep(pid, attachment.pins.record("space"))
        now_ns = self._clock_ns()
        checkpoint = TracedProcessCheckpoint(now_ns, self._memory.follow(attachment.process))
        write_traced_process(attachment.pins, checkpoint)
        self._beat(now_ns)
        self._sampling.begin(pid, request, now_ns)
        traced = self._take_on(attachment, request, checkpoint, SiteTable(now_ns))
        self.overview.note_attached()
        log.info(
            "process.attached",
            pid=pid,
            comm=attachment.process.comm,
            method=self._attach_method,
            probes=len(attachment.probes),
        )
        return self._reporter.row(traced, now_ns)

    def adopt(self, found: Iterable[ProcessPins], replaced: MappingOf[ProcessId, TracingRequest]) -> None:
        """Continue with the processes of an earlier daemon.

        Those that cannot be continued, and those `replaced` with the programs of another version, are
        attached to anew, as they were requested.
        """
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
        anew = dict(replaced)
        for pins in found:
            request = read_request(pins)
            try:
                attachment, checkpoint = adopter.adopt(pins)
            except (ValueError, OSError, errors.BpfleakdError) as error:
                log.warning("process.not-adopted", pid=pins.id.pid, gap_s=gap_s, reason=str(error))
                self._feed.forget(pins.id.pid)
                anew[pins.id] = request
                continue
            self._sampling.resume(pins.id.pid, request, now_ns)
            self._take_on(attachment, request, checkpoint, *self._restored(attachment, now_ns))
        for pid in set(self._maps.pids()) - self._running.keys():
            self._maps.remove_process(pid)
        self._beat(now_ns)
        if self._running:
            self._watch_while(True)
            self._settle_adopted(gap_s)
        self._unwinding.drop_unused()
        self._attacher.drop_unused()
        self._watch_while(bool(self._running))
        for id_, request in anew.items():
            self._start_anew(id_, request)

    def detach(self, pid: int) -> ProcessRow:
        """Stop tracing and forget the process; returns its last figures. Raises NotAttached."""
        if pid in self._processes.ended:
            row = self._reporter.row(self._processes.ended[pid], self._clock_ns())
            self._processes.forget_ended(pid)
            return row
        traced = self._processes.find(pid)
        self._end(traced, ProcessState.DETACHED)
        self._processes.forget_ended(pid)
        return self._reporter.row(traced, self._clock_ns())

    def stop(self, pid: int) -> None:
        """Stop tracing a process that is traced, and keep its last report."""
        self._end(self._running[pid], ProcessState.DETACHED)

    def leave(self) -> None:
        """Close everything, and leave the processes as they are to the next daemon."""
        self._collector.read(self._clock_ns)
        self._feed.save()
        self._beat(self._clock_ns())
        for traced in self._running.values():
            self._histories.keep(traced, now=True)
            self._histories.forget(traced.pid)
            self._feed.forget(traced.pid)
            self._attacher.release(traced.attachment)
            traced.close()
        self._running.clear()

    def use_suppressions(self, suppressions: Suppressions) -> None:
        """Use these from now on; the reports of processes that ended stay as they are."""
        self._suppressions = suppressions
        for traced in self._running.values():
            traced.suppressions = SiteSuppressions(suppressions)

    def request_of(self, pid: int) -> TracingRequest | None:
        """How a process is to be traced; None if it is not."""
        traced = self._running.get(pid)
        return traced.request if traced else None

    def is_unchanged(self, pid: int) -> bool:
        """Whether a process is traced, and has neither ended nor called exec since it was attached to."""
        traced = self._running.get(pid)
        if traced is None or traced.has_ended():
            return False
        return self._maps.process(pid).state is not RecordingState.EXECED

    def still_traced(self, pid: int) -> bool:
        """Whether a process is traced, after a look whether it has ended or called exec meanwhile."""
        if pid in self._running:
            # Only the state: the next tick compares the other counters with those of the last.
            self._end_if_over(self._running[pid], self._maps.process(pid).state)
        return pid in self._running

    def running(self) -> tuple[TracedProcess, ...]:
        """All traced processes, with their counters as of the last tick."""
        return tuple(self._running.values())

    def set_level(self, pid: int, level: int, reason: str) -> None:
        """Record fewer blocks of a process the higher the level, for this reason; 0 is as its mode says."""
        traced = self._running.get(pid)
        if traced is not None:
            traced.request = replace(traced.request, level=level, limited=reason)
            write_request(traced.attachment.pins, traced.request)
            self._sampling.set_level(pid, level, traced.counters, self._clock_ns())

    def drop_caches(self) -> None:
        """Let go of names, and of the reports of processes that ended but the last ones."""
        for traced in self._running.values():
            traced.drop_caches()
        self._processes.drop_ended()

    def traced_count(self) -> int:
        """How many processes are traced."""
        return len(self._running)

    def close(self) -> None:
        """Detach from everything."""
        for pid in list(self._running):
            self.detach(pid)
        self._processes.ended.clear()

    # Time passes

    def tick(self) -> float:
        """Read the counters of all sites, notice ends and execs; returns the seconds that it took."""
        began_ns = self._clock_ns()
        self._beat(began_ns)
        self._collector.read(self._clock_ns)
        self._unwinding.poll()
        self._attacher.poll()
        for traced in list(self._running.values()):
            self._end_if_over(traced)
        for traced in self._running.values():
            now_ns = self._clock_ns()
            traced.runtimes.refresh(now_ns)
            memory_bytes = read_anonymous_bytes(traced.attachment.process.id)
            traced.verdicts.note_memory(now_ns, traced.table.began_ns, memory_bytes)
            if traced.verdicts.is_due(now_ns, traced.table.began_ns, processes=len(self._running)):
                self._verdict_engine.evaluate(traced)
            self._histories.keep(traced)
        took_s = (self._clock_ns() - began_ns) / 1e9
        self.overview.note_tick(took_s)
        return took_s

    # Inside

    def _watch_while(self, wanted: bool) -> None:
        try:
            self._watch_address_spaces(wanted)
        except errors.KernelError as error:
            log.warning("space.not-watched", reason=error.message, hint=error.hint)

    def _beat(self, now_ns: int) -> None:
        self._maps.beat(now_ns, self._unattended_ns)

    def _take_on(
        self,
        attachment: Attachment,
        request: TracingRequest,
        checkpoint: TracedProcessCheckpoint,
        table: SiteTable,
        verdicts: SiteVerdicts | None = None,
        identities: dict[SiteKey, SiteIdentity] | None = None,
    ) -> TracedProcess:
        """The one place where a traced process is made: of a new attachment, or of an earlier daemon's."""
        pid = attachment.process.id.pid
        traced = self._running[pid] = TracedProcess(
            attachment=attachment,
            request=request,
            symbolizer=self._symbolizer_of(attachment),
            runtimes=ProcessRuntimes(attachment.process),
            attached_ns=checkpoint.attached_ns,
            table=table,
            verdicts=verdicts or SiteVerdicts(self._leak_after_s),
            suppressions=SiteSuppressions(self._suppressions),
            charging=SiteCharging(self._charge_rules, identities),
            counters=self._maps.process(pid),
            adopted_count=checkpoint.adopted_count,
            gap_s=checkpoint.gap_s,
        )
        if not traced.is_gone:
            traced.follow_runtimes(self._maps, attachment.mappings, self._clock_ns())
        self._processes.forget_ended(pid)
        return traced

    def _restored(
        self, attachment: Attachment, now_ns: int
    ) -> tuple[SiteTable, SiteVerdicts | None, dict[SiteKey, SiteIdentity]]:
        try:
            return restored_history(attachment.pins.record("history"), self._leak_after_s, now_ns)
        except ValueError as error:
            log.info("history.begun-anew", pid=attachment.process.id.pid, reason=str(error))
            # Growth is that since now.
            return SiteTable(now_ns, knows_past=False), None, {}

    def _start_anew(self, id_: ProcessId, request: TracingRequest) -> None:
        """Attach to a process that was traced, without what had been recorded of it."""
        try:
            self.start(id_.pid, request, expected=id_)
        except errors.BpfleakdError as error:
            log.warning("process.not-attached", pid=id_.pid, reason=error.message, hint=error.hint)
        except Exception:
            # A bug of ours, or what the target did to us: the others are traced on.
            log.exception("process.not-attached", pid=id_.pid)

    def _settle_adopted(self, gap_s: float) -> None:
        """Take in what waited, probe what came, and end what ended meanwhile."""
        self._collector.read(self._clock_ns)
        for traced in list(self._running.values()):
            log.info(
                "process.adopted",
                pid=traced.pid,
                comm=traced.attachment.process.comm,
                gap_s=gap_s,
                live_bytes=traced.table.totals.live_bytes,
                losses={reason: count for reason, count in traced.counters.losses.items() if count},
            )
            if not traced.is_gone:
                self._collector.follow_libraries(traced)
            self._end_if_over(traced)

    def _is_in_allocator(self, pid: int, stack_id: int) -> bool:
        traced = self._running.get(pid)
        if traced is None:
            return False
        key = SiteKey(AllocationKind.MMAP, stack_id)
        frames = self._verdict_engine.name(traced, [key])[key].stack.frames
        probed = traced.probed_functions()
        return any((frame.module, frame.function) in probed for frame in frames)

    def _end_if_over(self, traced: TracedProcess, now: RecordingState | None = None) -> None:
        if (now or traced.counters.state) is RecordingState.EXECED:
            self._end(traced, ProcessState.EXECED)
        elif traced.has_ended():
            self._end(traced, ProcessState.EXITED)
        elif traced.counters.state is RecordingState.UNATTENDED:
            self._begin_anew(traced)

    def _begin_anew(self, traced: TracedProcess) -> None:
        """Frees were missed while the programs had stopped (the daemon was, for too long)."""
        log.warning("process.unattended", pid=traced.pid, live_bytes=traced.table.totals.live_bytes)
        self._end(traced, ProcessState.DETACHED)
        self._start_anew(traced.attachment.process.id, traced.request)

    def _end(self, traced: TracedProcess, state: ProcessState) -> None:
        """Take the probes out, keep the last report, drop the tables."""
        self._attacher.stop(traced.attachment)
        try:
            self._collector.read(self._clock_ns)
            traced.state = state
            traced.ended_ns = self._clock_ns()
            self.queries.keep_last(traced)
        finally:
            # Whatever the report ran into: nothing of the process may stay behind.
            del self._running[traced.pid]
            self._attacher.clear(traced.attachment)
            self._feed.forget(traced.pid)
            self._histories.forget(traced.pid)
            self._memory.forget(traced.pid)
            self._sampling.forget(traced.pid)
            self._watch_while(bool(self._running))
            traced.close()
        final = traced.final
        assert final is not None
        self._processes.remember_ended(traced)
        self.overview.note_ended(traced)
        self._keep_report(traced.attachment.process.id, final)
        log.info(
            f"process.{state}",
            pid=traced.pid,
            comm=traced.attachment.process.comm,
            live_bytes=final.process.live_bytes,
            live_count=final.process.live_count,
        )


def _mappings_now(attachment: Attachment) -> Sequence[Mapping]:
    """The mappings after the recording began, so that no change falls between the two."""
    try:
        return read_mappings(attachment.process.id.pid)
    except errors.BpfleakdError:
        return attachment.mappings
