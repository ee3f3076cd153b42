"""The turns of traced processes in a tick: first their run-time code is followed, then observers judge them.

Each round of turns has a limit. The process that waited longest is first; the rest waits for the next tick.

Costs are processor time. A turn that only waited for a busy machine is no reason for a longer pause, or for
fewer turns: each process would be judged every few minutes, just when its memory runs out. But no process
can keep the others waiting for long, whatever it does: a round has a limit of time, too, and a turn costs at
least a fifth of the time that it took.

Many processes share a part of the time: the more there are, the less often each is judged, but at least every
few seconds. Counters are read at every tick all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog

from bpfleakd.process.memory_sampler import read_anonymous_bytes
from bpfleakd.tracing.lifetime.beginning import follow_code
from bpfleakd.tracing.observer import TracingObserver
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.reading_budget import Pause
from bpfleakd.tracing.recorded_state import RecordedState
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.traced_processes import TracedProcesses
from bpfleakd.tracing.unwinding import Unwinding

log = structlog.get_logger()

# How much processor time judging processes may take in a tick, and how much following their generated code.
_JUDGING_NS = 200_000_000
_FOLLOWING_NS = 100_000_000
# On a busy machine that takes longer, up to this many times as long.
_WAITING_FACTOR = 5

# The share of the time for judging all processes. If they are many, each waits: up to the longest wait, and
# up to a part of the time for which it was observed.
_JUDGING_SHARE = 0.003
_LONGEST_WAIT_NS = 4_000_000_000
_WAIT_OF_OBSERVED = 1 / 15


class TracingTurns:
    """The turns of the running ones of `processes`; `observers` are notified in their order."""

    def __init__(
        self,
        processes: TracedProcesses,
        observers: Sequence[TracingObserver],
        unwinding: Unwinding,
        state: RecordedState,
        view: Callable[[TracedProcess], ProcessView],
        clock_ns: Callable[[], int],
    ) -> None:
        self._processes = processes
        self._observers = observers
        self._unwinding = unwinding
        self._state = state
        self._view = view
        self._clock_ns = clock_ns

    def take(self) -> None:
        """Give all due processes their turn, as long as there is time.

        Code is followed as soon as it is generated, in a separate round: a process with many sites is judged
        less often.
        """
        self._follow_code()
        running = list(self._processes.running.values())
        self._round(running, lambda traced: traced.look_pause, _JUDGING_NS, self._judge, self._crowd_wait_ns)

    def glance(self) -> None:
        """Between ticks, follow the code that runtimes generate, and their heaps."""
        self._follow_code()
        managed = [traced for traced in self._processes.running.values() if any(traced.runtimes)]
        self._round(managed, lambda traced: traced.glance_pause, _FOLLOWING_NS, self._follow_heap)

    def _follow_code(self) -> None:
        makers = [traced for traced in self._processes.running.values() if traced.runtimes.makes_code]
        self._round(makers, lambda traced: traced.code_pause, _FOLLOWING_NS, self._follow_new_code)

    def _round(
        self,
        processes: Iterable[TracedProcess],
        pause: Callable[[TracedProcess], Pause],
        limit_ns: int,
        job: Callable[[TracedProcess], None],
        wait_ns: Callable[[TracedProcess, int], int] = lambda _traced, _spent_ns: 0,
    ) -> None:
        began_ns = now_ns = self._clock_ns()
        spent_ns = 0
        for traced in sorted(processes, key=lambda traced: pause(traced).done_ns):
            if spent_ns > limit_ns or now_ns - began_ns > _WAITING_FACTOR * limit_ns:
                break
            if traced.is_set_aside(now_ns) or traced.is_ending or not pause(traced).is_due(now_ns):
                continue
            turn_began_ns, spent_before_ns = now_ns, time.thread_time_ns()
            with traced.isolated(self._clock_ns):
                job(traced)
            now_ns = self._clock_ns()
            took_ns = (now_ns - turn_began_ns) // _WAITING_FACTOR
            turn_ns = max(time.thread_time_ns() - spent_before_ns, took_ns)
            spent_ns += turn_ns
            pause(traced).used(now_ns, turn_ns, wait_ns(traced, turn_ns))

    def _crowd_wait_ns(self, traced: TracedProcess, spent_ns: int) -> int:
        """How long a process waits for the others, if judging each costs as much; 0 if there are none."""
        others = len(self._processes.running) - 1
        observed_ns = self._clock_ns() - traced.since.attached_ns
        longest_ns = min(_LONGEST_WAIT_NS, round(observed_ns * _WAIT_OF_OBSERVED))
        return min(longest_ns, round(others * spent_ns / _JUDGING_SHARE))

    def _follow_new_code(self, traced: TracedProcess) -> None:
        traced.runtimes.refresh_code(self._clock_ns())
        follow_code(traced, self._unwinding, self._clock_ns())

    def _follow_heap(self, traced: TracedProcess) -> None:
        traced.runtimes.refresh(self._clock_ns())
        traced.runtimes.charge_blocks(partial(self._view(traced).maps.stack_of_block, traced.pid))

    def _judge(self, traced: TracedProcess) -> None:
        traced.runtimes.refresh(self._clock_ns())
        process = traced.attachment.process.id
        traced.anonymous_bytes = read_anonymous_bytes(process, traced.anonymous_bytes)
        view = self._view(traced)
        for observer in self._observers:
            observer.collected(view)
        self._state.write_history(traced)
        if traced.set_aside is not None:
            traced.set_aside = None
            log.info("process.looked-at-again", pid=traced.pid)
