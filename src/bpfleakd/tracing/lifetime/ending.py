"""The end of tracing: the last names, figures and report, and the removal of everything in the process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from bpfleakd.model.process import ProcessState
from bpfleakd.tracing.attaching.attach import Attacher
from bpfleakd.tracing.go.profile_switch import turn_off_profile
from bpfleakd.tracing.judging.earlier_leaks import EarlierLeaks
from bpfleakd.tracing.observer import TracingObserver
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.recorded_state import RecordedState
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.traced_processes import TracedProcesses

log = structlog.get_logger()

# Maximum of ended processes whose last report waits for names; further ones get those available.
_WAITING_MAX = 8
# How much of a tick ending processes may take, apart from the last one: a process with 5,000 call sites takes
# 0.1 s.
_ENDING_NS = 100_000_000


class Ending:
    """Ends the tracing of processes. `collect` updates their tables.

    `earlier_leaks` are those of detached processes.
    """

    def __init__(
        self,
        attacher: Attacher,
        state: RecordedState,
        processes: TracedProcesses,
        observers: Sequence[TracingObserver],
        collect: Callable[[], int],
        view: Callable[[TracedProcess], ProcessView],
        clock_ns: Callable[[], int],
    ) -> None:
        self._attacher = attacher
        self._state = state
        self._processes = processes
        self._observers = observers
        self._collect = collect
        self._view = view
        self._clock_ns = clock_ns
        self.earlier_leaks = EarlierLeaks()
        self._next_pid: int | None = None

    def take_turns(self, end_if_over: Callable[[TracedProcess], None]) -> None:
        """End processes that are over: at least one, more if there is time, the rest later."""
        over_ns = self._clock_ns() + _ENDING_NS
        running = self._processes.running
        waiting = list(running.values())
        if self._next_pid in running:
            # Processes that wait for names do not delay others.
            first = list(running).index(self._next_pid)
            waiting = waiting[first:] + waiting[:first]
        self._next_pid = None
        for number, traced in enumerate(waiting, 1):
            with traced.isolated(self._clock_ns):
                end_if_over(traced)
            if self._clock_ns() > over_ns and number < len(waiting):
                self._next_pid = waiting[number].pid
                return

    def end_with_names(self, traced: TracedProcess, *, is_in_a_hurry: bool) -> None:
        """End an exited process once its names are available; a few may wait at a time."""
        ending = sum(other.has_ended() for other in self._processes.running.values())
        if not is_in_a_hurry and ending <= _WAITING_MAX:
            with traced.isolated(self._clock_ns):
                for observer in self._observers:
                    observer.exited(self._view(traced))
            if traced.waits_for_names(self._clock_ns()):
                return
        self.end(traced, ProcessState.EXITED)

    def end(self, traced: TracedProcess, state: ProcessState) -> None:
        """Remove the probes, store the last report, drop the tables."""
        if state is ProcessState.DETACHED and traced.go is not None:
            turn_off_profile(traced.attachment.pins)
        self._attacher.stop(traced.attachment)
        try:
            self._collect()
            traced.state = state
            traced.ended_ns = self._clock_ns()
            for observer in self._observers:
                observer.ending(self._view(traced))
            if state is ProcessState.DETACHED:
                known = traced.verdicts.known_leaks(traced.table, traced.charging.identities)
                self.earlier_leaks.keep(traced.attachment.process.id, known)
        finally:
            # Even if the report fails, nothing of the process may remain.
            del self._processes.running[traced.pid]
            self._attacher.clear(traced.attachment)
            self._state.forget(traced.pid)
            self._state.watch_address_spaces(self._processes.running)
            traced.close()
        self._processes.remember_ended(traced)
        for observer in self._observers:
            observer.ended(traced)
        totals = traced.table.totals
        comm = traced.attachment.process.comm
        log.info(
            f"process.{state}",
            pid=traced.pid,
            comm=comm,
            live_bytes=totals.live_bytes,
            live_count=totals.live_count,
        )
