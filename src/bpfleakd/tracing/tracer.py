"""Tracing of processes, from attach to end; the other modules of this directory are its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.analysis.suppressions import Suppressions
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.address_space_events import AddressSpaceEvent, Syscall
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.pins import ProcessPins
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.model.process import ProcessId, ProcessLabels, ProcessState, TracingMode, TracingRequest
from bpfleakd.process.identity import read_labels
from bpfleakd.process.memory_limits import MemoryLimitReader
from bpfleakd.symbols.symbolizer import Symbolizer
from bpfleakd.tracing.address_space.address_maps import AddressMaps
from bpfleakd.tracing.attaching.attach import IMPATIENT, UNHURRIED, Attacher, AttachWait
from bpfleakd.tracing.attaching.attachment import Attachment
from bpfleakd.tracing.capacity.site_room import SiteRoom
from bpfleakd.tracing.checkpoint import read_request, write_request
from bpfleakd.tracing.counter_collector import CounterCollector
from bpfleakd.tracing.go.profile_switch import turn_on_profile
from bpfleakd.tracing.judging.site_suppressions import SiteSuppressions
from bpfleakd.tracing.lifetime.beginning import Beginning, TracingOptions
from bpfleakd.tracing.lifetime.ending import Ending
from bpfleakd.tracing.lifetime.tick_pace import NextTick, TickPace
from bpfleakd.tracing.lifetime.turns import TracingTurns
from bpfleakd.tracing.memory_breakdown import MemoryBreakdown
from bpfleakd.tracing.observer import TracingObserver
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.recorded_state import History, RecordedState
from bpfleakd.tracing.traced_process import TracedProcess, TracedSince
from bpfleakd.tracing.traced_processes import TracedProcesses
from bpfleakd.tracing.unwinding import Unwinding

log = structlog.get_logger()

# How much of a tick the removal of untraced processes' entries may take.
_SWEEPING_S = 0.05
# The limits of memory are read again after this time.
_LIMITS_NS = 500_000_000


class Tracer:
    """Traces processes with loaded programs. `symbolizer_of` creates the symbolizer of a process.

    `processes` are the traced ones, and those that ended recently; `observers` are notified in their order.
    `clock_ns` is CLOCK_MONOTONIC, the clock of the programs.
    """

    def __init__(
        self,
        maps: Maps,
        attacher: Attacher,
        unwinding: Unwinding,
        watch_address_spaces: Callable[[bool], None],
        symbolizer_of: Callable[[Attachment], Symbolizer],
        options: TracingOptions,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._maps = maps
        self._attacher = attacher
        self._unwinding = unwinding
        self._unattended_ns = round(options.unattended_s * 1e9)
        self.clock_ns = clock_ns
        self.processes = TracedProcesses()
        # Processes to attach to again once their files have been read.
        self._to_begin_anew: dict[ProcessId, TracingRequest] = {}
        self.observers: list[TracingObserver] = []
        self._running = self.processes.running
        address_maps = AddressMaps(self._is_in_allocator, self._is_python_arena, maps.take_break)
        self._state = RecordedState(
            maps, address_maps, options.sampling, options.leak_after_s, watch_address_spaces, clock_ns
        )
        self._collector = CounterCollector(maps, attacher, unwinding, self._state, self.processes, clock_ns)
        self._room = SiteRoom(maps, options.capacities, clock_ns)
        self._beginning = Beginning(maps, unwinding, symbolizer_of, options, clock_ns)
        self._turns = TracingTurns(
            self.processes, self.observers, unwinding, self._state, self.view, clock_ns
        )
        self._pace = TickPace()
        self._limits, self._limits_ns = MemoryLimitReader(), clock_ns()
        self._ending = Ending(
            attacher, self._state, self.processes, self.observers, self.collect, self.view, clock_ns
        )

    # Starts and ends of processes.

    def prepare(self) -> None:
        """Prepare for the first attach; a failure is logged and otherwise ignored."""
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
        wait: AttachWait = UNHURRIED,
        begun_anew: int = 0,
        prefer_inside: bool = False,
    ) -> TracedProcess:
        """Start tracing a process, if it is the `expected` one, as requested.

        `begun_anew` is how often its earlier records were lost. `prefer_inside`: by a sampler inside the
        process if one announces its blocks, whatever the mode. A request without labels gets the current
        labels of the process. Raises AlreadyAttached, also for a process that has ended since the last tick
        (`still_traced` checks), and the errors of Attacher.attach.
        """
        if pid in self._running:
            if request.enable_profile and self._enable_profile(self._running[pid]):
                return self._running[pid]
            raise errors.AlreadyAttached(f"process {pid} is being traced already", "`bpfleakctl ps` shows it")
        if request.labels == ProcessLabels():
            request = replace(request, labels=read_labels(pid))
        attachment = self._attacher.attach(
            pid, request, expected=expected, wait=wait, prefer_inside=prefer_inside
        )
        if prefer_inside and attachment.is_inside:
            request = replace(request, mode=TracingMode.INSIDE)
        # Heap first: linking the system calls takes time.
        self._state.watch_address_spaces((*self._running, pid))
        since = self._state.begin(attachment, request, begun_anew)
        self._beat(since.attached_ns)
        traced = self._take_on(attachment, request, since, self._state.new_history())
        earlier = self._ending.earlier_leaks.take(attachment.process.id)
        if not request.is_manual:
            traced.verdicts.go_on_with(earlier)
        traced.followed_changes = traced.counters.library_changes
        for observer in self.observers:
            observer.attached(traced)
        comm, probes = attachment.process.comm, len(attachment.probes)
        log.info("process.attached", pid=pid, comm=comm, mode=request.mode, probes=probes)
        if request.enable_profile:
            self._enable_profile_or_detach(traced)
        return traced

    def adopt(self, found: Iterable[ProcessPins], replaced: Mapping[ProcessId, TracingRequest]) -> None:
        """Continue with the processes of an earlier daemon.

        Those that cannot be continued, and those `replaced` with the programs of another version, are
        attached to again, as requested originally.
        """
        gap_s = round(max(0, self.clock_ns() - self._maps.last_beat_ns()) / 1e9, 3)
        self._unwinding.restore()
        anew = dict(replaced)
        for pins in found:
            request = read_request(pins)
            try:
                self._continue(pins, request, gap_s)
            except (ValueError, OSError, errors.BpfleakdError) as error:
                log.warning("process.not-adopted", pid=pins.id.pid, gap_s=gap_s, reason=str(error))
                anew[pins.id] = request
        for pid in set(self._maps.pids()) - self._running.keys():
            self._maps.remove_process(pid)
        self._maps.remove_unknown()
        self._beat(self.clock_ns())
        if self._running:
            self._state.watch_address_spaces(self._running)
            self._settle_adopted(gap_s)
        self._unwinding.drop_unused()
        self._attacher.drop_unused()
        self._state.watch_address_spaces(self._running)
        for id_, request in anew.items():
            self._start_anew(id_, request)

    def detach(self, pid: int) -> TracedProcess:
        """Stop tracing and forget the process; returns its last state. Raises NotAttached."""
        traced = self.processes.find(pid)
        if pid in self._running:
            self._ending.end(traced, ProcessState.DETACHED)
        self.processes.forget_ended(pid)
        return traced

    def stop(self, pid: int) -> None:
        """Stop tracing a process, and keep its last report."""
        self._ending.end(self._running[pid], ProcessState.DETACHED)

    def leave(self) -> None:
        """Close everything, and leave the processes unchanged to the next daemon."""
        self.collect()
        self._state.feed.save()
        self._beat(self.clock_ns())
        for traced in self._running.values():
            self._state.write_history(traced, now=True)
            self._state.forget(traced.pid)
            self._attacher.release(traced.attachment)
            traced.close()
        self._running.clear()

    def close(self) -> None:
        """Detach from everything."""
        for pid in list(self._running):
            self.detach(pid)
        self.processes.ended.clear()

    # Queries and commands.

    @property
    def memory(self) -> MemoryBreakdown:
        """The memory of the traced processes by use."""
        return self._state.memory

    @property
    def ring_used_share(self) -> float:
        """The used share of the ring of reports (0 to 1) at the last reading."""
        return self._state.feed.used_share

    @property
    def limits(self) -> MemoryLimitReader:
        """Reads the limits of memory; what it has read is from a moment ago at most."""
        now_ns = self.clock_ns()
        if now_ns - self._limits_ns > _LIMITS_NS:
            self._limits, self._limits_ns = MemoryLimitReader(), now_ns
        return self._limits

    def collect(self) -> int:
        """Update all tables; returns the time of their figures (CLOCK_MONOTONIC)."""
        return self._collector.collect()

    def view(self, traced: TracedProcess) -> ProcessView:
        """The data on a process that queries may use."""
        return ProcessView(traced, self._maps, self._state.address_maps, self.clock_ns)

    def request_of(self, pid: int) -> TracingRequest | None:
        """How a process is traced; None if it is not traced."""
        traced = self._running.get(pid)
        return traced.request if traced else None

    def tells_too_little(self, pid: int) -> bool:
        """Whether to trace a process for longer, because its garbage collections are rare."""
        traced = self._running.get(pid)
        return traced is not None and traced.go is not None and traced.go.tells_too_little

    def is_unchanged(self, pid: int) -> bool:
        """Whether a process is traced, and has neither ended nor called exec since the attach."""
        traced = self._running.get(pid)
        if traced is None or traced.has_ended():
            return False
        return self._maps.process(pid).state is not RecordingState.EXECED

    def still_traced(self, pid: int) -> bool:
        """Whether a process is traced, after checking if it has ended or called exec."""
        if pid in self._running:
            # Only the state: the next tick compares the other counters with those of the last.
            self._end_if_over(self._running[pid], self._maps.process(pid).state)
        return pid in self._running

    def running(self) -> tuple[TracedProcess, ...]:
        """All traced processes, with their counters as of the last tick."""
        return tuple(self._running.values())

    def traced_count(self) -> int:
        """How many processes are traced."""
        return len(self._running)

    def set_level(self, pid: int, level: int, reason: str) -> None:
        """Record fewer blocks of a process the higher the level; 0 is as its mode requires."""
        traced = self._running.get(pid)
        if traced is not None:
            with traced.isolated(self.clock_ns):
                traced.request = replace(traced.request, level=level, limited=reason)
                write_request(traced.attachment.pins, traced.request)
                if traced.attachment.is_inside:
                    return
                self._state.sampling.set_level(pid, level, traced.counters, self.clock_ns())

    def use_suppressions(self, suppressions: Suppressions) -> None:
        """Use these suppressions from now on; reports of ended processes do not change."""
        self._beginning.suppressions = suppressions
        for traced in self._running.values():
            traced.suppressions = SiteSuppressions(suppressions)

    def drop_caches(self) -> None:
        """Drop names, and all but the newest reports of ended processes."""
        for traced in self._running.values():
            traced.drop_caches()
        self.processes.drop_ended()

    # Ticks.

    def tick(self) -> float:
        """Read the counters of all sites, notice ends and execs; returns the duration in seconds.

        An error with a process sets only that process aside.
        """
        began_ns = self.clock_ns()
        self._beat(began_ns)
        self.collect()
        self._unwinding.poll()
        self._attacher.poll()
        self._maps.shared.sweep(_SWEEPING_S)
        self._room.make(self._running.values())
        for id_, request in list(self._to_begin_anew.items()):
            self._start_anew(id_, request)
        self._ending.take_turns(self._end_if_over)
        self._turns.take()
        took_s = (self.clock_ns() - began_ns) / 1e9
        for observer in self.observers:
            observer.ticked(took_s)
        return took_s

    def glance(self) -> bool:
        """Follow what runtimes change by themselves between ticks, unless the next tick is due: returns that.

        It is if a program with a runtime has a new stack, whose frames may change, or has loaded code.
        """
        managed = [traced for traced in self._running.values() if traced.has_runtime]
        if any(_news(self._maps.process(one.pid)) != _news(one.counters) for one in managed):
            return True
        self._turns.glance()
        return False

    def next_tick(self) -> NextTick:
        """How long the next tick may wait, and how long it may take; to be asked once after each tick."""
        return self._pace.next_tick(
            self._running.values(), self.ring_used_share, self.clock_ns(), self.limits.room_bytes
        )

    # Internals.

    def _beat(self, now_ns: int) -> None:
        self._maps.beat(now_ns, self._unattended_ns)

    def _take_on(
        self, attachment: Attachment, request: TracingRequest, since: TracedSince, history: History
    ) -> TracedProcess:
        traced = self._beginning.take_on(attachment, request, since, history)
        self.processes.forget_ended(traced.pid)
        self._running[traced.pid] = traced
        return traced

    def _continue(self, pins: ProcessPins, request: TracingRequest, gap_s: float) -> None:
        """Adopt one process. Raises ValueError, OSError or BpfleakdError, and then leaves nothing of it."""
        attachment = None
        try:
            attachment = self._attacher.adopt(pins)
            since = self._state.resume(attachment, request, gap_s)
            self._take_on(attachment, request, since, self._state.restored_history(attachment))
        except BaseException:
            self._state.forget(pins.id.pid)
            if attachment is not None:
                attachment.go.close()
                self._attacher.release(attachment)
            self._attacher.discard(pins)
            raise

    def _settle_adopted(self, gap_s: float) -> None:
        """Process waiting reports, probe new libraries, and end processes that have exited meanwhile."""
        self.collect()
        for traced in self.running():
            log.info(
                "process.adopted",
                pid=traced.pid,
                comm=traced.attachment.process.comm,
                gap_s=gap_s,
                live_bytes=traced.table.totals.live_bytes,
                losses={reason: count for reason, count in traced.counters.losses.items() if count},
            )
            with traced.isolated(self.clock_ns):
                self._end_if_over(traced)

    def _enable_profile(self, traced: TracedProcess) -> bool:
        """Turn on the profile of a Go program; returns whether that changed anything."""
        pins = traced.attachment.pins
        changed = turn_on_profile(pins)
        if changed and traced.go is not None:
            traced.go.look_again()
            traced.request = replace(traced.request, enable_profile=True)
            write_request(pins, traced.request)
        return changed

    def _enable_profile_or_detach(self, traced: TracedProcess) -> None:
        try:
            self._enable_profile(traced)
        except errors.BpfleakdError:
            self._ending.end(traced, ProcessState.DETACHED)
            self.processes.forget_ended(traced.pid)
            raise

    def _start_anew(self, id_: ProcessId, request: TracingRequest) -> None:
        """Attach to a process again, without its earlier records."""
        self._to_begin_anew.pop(id_, None)
        try:
            self.start(id_.pid, request, expected=id_, wait=IMPATIENT, begun_anew=1)
        except errors.NotYet:
            self._to_begin_anew[id_] = request
        except errors.BpfleakdError as error:
            log.warning("process.not-attached", pid=id_.pid, reason=error.message, hint=error.hint)
        except Exception:
            # A bug, or an attack by the target: the other processes continue.
            log.exception("process.not-attached", pid=id_.pid)

    def _is_in_allocator(self, event: AddressSpaceEvent) -> bool:
        traced = self._running.get(event.pid)
        if traced is None:
            return False
        stack = self._maps.stack(event.pid, event.stack_id)
        if event.syscall == Syscall.MPROTECT and traced.is_call_of_allocator(stack):
            self._maps.add_commit_call(event.pid, *stack.addresses[:2])
        if event.syscall == Syscall.BRK and (caller := traced.allocators_caller_of_sbrk(stack)):
            self._maps.add_break_caller(event.pid, caller)
        return traced.is_in_allocator(stack)

    def _is_python_arena(self, pid: int, size_bytes: int, stack_id: int) -> bool:
        traced = self._running.get(pid)
        frames = traced.runtimes.frames if traced is not None else None
        return frames is not None and frames.maps_arena(size_bytes, lambda: self._maps.stack(pid, stack_id))

    def _end_if_over(self, traced: TracedProcess, now: RecordingState | None = None) -> None:
        if (now or traced.counters.state) is RecordingState.EXECED:
            self._ending.end(traced, ProcessState.EXECED)
        elif traced.has_ended():
            self._ending.end_with_names(traced, is_in_a_hurry=now is not None)
        elif traced.counters.state is RecordingState.UNATTENDED:
            # Frees were missed while the programs had stopped, since the daemon was stopped for too long.
            log.warning("process.unattended", pid=traced.pid, live_bytes=traced.table.totals.live_bytes)
            self._ending.end(traced, ProcessState.DETACHED)
            self._start_anew(traced.attachment.process.id, traced.request)


def _news(counters: ProcessCounters) -> tuple[int, ...]:
    return counters.state, counters.stack_count, counters.code_changes, counters.library_changes
