"""The supervisor: decides which process is traced when, from process events and the policy.

Rules:
  - A process is identified by pid and start time. Events only say that something happened to a pid: the
    supervisor reads the truth from /proc when it checks the process, so a missed, late or misleading event
    costs only time. After any events the states are those that a check of every process would give.
  - The newest state wins. A check is delayed a little, and processes that have ended by then are dropped: a
    burst of short processes costs a dictionary entry each.
  - Only `work` attaches and detaches, and one process at a time, so that requests get their turn in between.
  - Manual attach and detach override the policy: attached, until exec or the end; detached, until the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Protocol

from bpfleakd.model.process import MANUAL, TracingMode, TracingRequest
from bpfleakd.model.process_events import ProcessChange, ProcessEvent
from bpfleakd.model.supervision import SupervisionState
from bpfleakd.process.policy.rules import Decision, Policy, Subject
from bpfleakd.process.processes import ProcessStat
from bpfleakd.supervision.growth_watcher import GrowthWatcher, Open
from bpfleakd.supervision.managed_process import AT_ONCE, Agenda, ManagedProcess
from bpfleakd.supervision.reconciler import Reconciler
from bpfleakd.tracing.attaching.attach import UNHURRIED, AttachWait
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.tracer import Tracer

_MS = 1_000_000

# Most forks are followed by exec, which starts over; then the dynamic linker takes a millisecond or two to
# map the C library.
_AFTER_FORK_NS = 20 * _MS
_AFTER_EXEC_NS = 2 * _MS

# Takes about 10 ms.
_LOOKS_AT_ONCE = 64

# The delay after an unnoticed loss of events: of starts, ends and new names; and, every tenth time, of
# changes without any event, such as another cgroup.
_RESCAN_NS = 60_000 * _MS
_LOOK_AT_ALL_EVERY = 10


class Processes(Protocol):
    """The processes in /proc."""

    def all(self) -> Sequence[ProcessStat]: ...
    def stat(self, pid: int) -> ProcessStat | None: ...
    def subject(self, stat: ProcessStat) -> Subject: ...


class Supervisor:
    """Decides and acts. `events` returns the events since the last call; times are CLOCK_MONOTONIC."""

    def __init__(
        self,
        policy: Policy,
        tracer: Tracer,
        watcher: GrowthWatcher,
        processes: Processes,
        events: Callable[[], Iterable[ProcessEvent]],
        *,
        own_pid: int,
        traced_max: int,
    ) -> None:
        self._policy = policy
        self._tracer = tracer
        self._watcher = watcher
        self._processes = processes
        self._events = events
        self._own_pid = own_pid
        self._managed: dict[int, ManagedProcess] = {}
        self._agenda = Agenda()
        self._reconciler = Reconciler(tracer, watcher, self._agenda, traced_max)
        self._rescanned_ns = 0
        self.rescans_total = 0
        self.short_lived_total = 0
        self.missed_total: Counter[str] = Counter()

    # Events and ticks.

    def work(self, now_ns: int) -> int | None:
        """Process events and due checks, up to one attach or detach; returns when more is due."""
        self._take_in(now_ns)
        for pid in islice(self._agenda.due(now_ns), _LOOKS_AT_ONCE):
            if self._look(pid, now_ns):
                break
        return self._agenda.next_ns()

    def tick(self, now_ns: int) -> None:
        """Process what the tracer noticed, and let the watcher read."""
        if now_ns - self._rescanned_ns >= _RESCAN_NS:
            self._rescan(now_ns, at_all=self.rescans_total % _LOOK_AT_ALL_EVERY == 0)
        for process in list(self._managed.values()):
            if process.state is SupervisionState.TRACED and self._tracer.request_of(process.pid) is None:
                self._reconciler.watch_no_more(process)
                process.begin_anew()
                self._agenda.set(process.pid, now_ns)
            elif process.state is SupervisionState.WAITING and self._reconciler.has_room():
                self._agenda.set(process.pid, now_ns)
        for action in self._watcher.step(now_ns):
            known = self._managed.get(action.process.pid)
            if known is None or known.id != action.process:
                continue
            if isinstance(action, Open) and known.window_end_ns is None:
                known.opening = action
            elif not isinstance(action, Open):
                known.opening = None
                known.window_end_ns = AT_ONCE if known.window_end_ns is not None else None
            self._agenda.set(known.pid, now_ns)

    def rescan(self, now_ns: int) -> None:
        """Check all existing processes again."""
        self._rescan(now_ns, at_all=True)

    def _rescan(self, now_ns: int, *, at_all: bool) -> None:
        """Check `at_all` processes, or only those that have changed."""
        self.rescans_total += 1
        self._rescanned_ns = now_ns
        stats = self._processes.all()
        present = {stat.id.pid: stat for stat in stats}
        for pid in self._managed.keys() - present.keys():
            self._exited(pid, now_ns)
        for place, stat in enumerate(stats):
            known = self._managed.get(stat.id.pid) or self._appeared(stat.id.pid, stat.parent_pid)
            if at_all or known.decision is None or (known.id, known.comm) != (stat.id, stat.comm):
                # Parents before their children.
                self._agenda.set(stat.id.pid, now_ns + place)

    def use(self, policy: Policy, now_ns: int) -> None:
        """Decide again about every process, by another policy. Manual attach and detach stay."""
        self._policy = policy
        self.rescan(now_ns)

    def adopt(self, began_ns: Mapping[int, int], now_ns: int) -> None:
        """Adopt the processes that an earlier daemon traced; `began_ns` is when each was attached, by pid.

        Manually attached ones stay manual. A window of automatic tracing keeps its end.
        """
        for pid, since_ns in began_ns.items():
            stat = self._processes.stat(pid)
            if stat is None:
                continue
            process = self._identified(self._appeared(pid, stat.parent_pid), stat)
            decision = process.decision = self._decide(process, stat)
            request = self._tracer.request_of(pid) or TracingRequest()
            # Without a record: manual if the policy would not trace it.
            unwanted = request.rule is None and decision.mode not in (TracingMode.AUTO, request.mode)
            if request.is_manual or unwanted:
                process.manual_mode = request.mode
            process.be(SupervisionState.TRACED)
            if not process.manual and decision.mode is TracingMode.AUTO:
                self._reconciler.resume_window(process, decision, since_ns, now_ns)

    # Requests of a user.

    def attach(
        self,
        pid: int,
        now_ns: int,
        mode: TracingMode | None = None,
        wait: AttachWait = UNHURRIED,
        *,
        enable_profile: bool = False,
    ) -> TracedProcess:
        """Trace a process at a user's request. Raises the errors of Tracer.start.

        `mode` None: INSIDE where a sampler inside the process announces its blocks, else EXACT.
        """
        self._tracer.still_traced(pid)
        request = TracingRequest(mode or TracingMode.EXACT, MANUAL, enable_profile=enable_profile)
        traced = self._tracer.start(pid, request, wait=wait, prefer_inside=mode is None)
        self._take_in(now_ns)
        stat = self._processes.stat(pid)
        if stat is not None:
            process = self._identified(self._managed.get(pid) or self._appeared(pid, stat.parent_pid), stat)
            self._reconciler.watch_no_more(process)
            process.begin_anew()
            process.manual_mode = traced.request.mode
            process.be(SupervisionState.TRACED)
        return traced

    def detach(self, pid: int, now_ns: int) -> TracedProcess:
        """Stop tracing a process, until it ends. Raises NotAttached."""
        was_traced = self._tracer.request_of(pid) is not None
        traced = self._tracer.detach(pid)
        self._take_in(now_ns)
        process = self._managed.get(pid)
        if was_traced and process is not None:
            self._reconciler.watch_no_more(process)
            process.begin_anew()
            process.manual_mode = TracingMode.OFF
            process.be(SupervisionState.DETACHED)
            self._agenda.drop(pid)
        return traced

    def evict(self, pid: int, reason: str, now_ns: int) -> None:
        """Stop tracing a process that costs too much, and keep its report.

        A window is closed; any other process is not attached to again before its next exec.
        """
        process = self._managed.get(pid)
        if process is not None and process.window_end_ns is not None:
            process.window_end_ns = AT_ONCE
            self._agenda.set(pid, now_ns)
            return
        if self._tracer.request_of(pid) is not None:
            self._tracer.stop(pid)
        if process is not None:
            process.be(SupervisionState.REFUSED, reason)

    # Queries.

    def is_manual(self, pid: int) -> bool:
        """Whether a user attached the process."""
        process = self._managed.get(pid)
        return process is not None and process.manual

    def processes(self) -> Sequence[ManagedProcess]:
        """Every process, by pid."""
        return [self._managed[pid] for pid in sorted(self._managed)]

    def by_state(self) -> dict[str, int]:
        """How many processes are in each state."""
        count = Counter(process.state.value for process in self._managed.values())
        return {state.value: count[state.value] for state in SupervisionState}

    @property
    def refused_total(self) -> dict[str, int]:
        """How many processes could not be traced, by error code."""
        return dict(self._reconciler.refused_total)

    # Events.

    def _take_in(self, now_ns: int) -> None:
        events = list(self._events())
        gaps = [index for index, event in enumerate(events) if event.change is ProcessChange.GAP]
        if gaps:
            # A check of everything makes the remaining events obsolete.
            self.rescan(now_ns)
            events = events[gaps[-1] + 1 :]
        for event in events:
            self._happened(event, now_ns)

    def _happened(self, event: ProcessEvent, now_ns: int) -> None:
        pid = event.pid
        begins = event.change in (ProcessChange.FORK, ProcessChange.EXEC)
        if begins and self._tracer.request_of(pid) is not None and self._tracer.is_unchanged(pid):
            return  # it has been attached to since
        if event.change is ProcessChange.EXIT:
            self._exited(pid, now_ns)
        elif event.change is ProcessChange.FORK:
            if pid in self._managed:
                self._exited(pid, now_ns)
            process = self._appeared(pid, event.parent_pid)
            self._agenda.set(pid, now_ns + (0 if process.inherited else _AFTER_FORK_NS))
        elif event.change is ProcessChange.EXEC:
            process = self._managed.get(pid) or self._appeared(pid, parent_pid=0)
            self._reconciler.watch_no_more(process)
            if process.state is not SupervisionState.DETACHED:
                process.begin_anew()
            self._agenda.set(pid, now_ns + _AFTER_EXEC_NS)
        elif pid in self._managed and self._managed[pid].decision is not None:
            self._agenda.set(pid, now_ns)

    def _appeared(self, pid: int, parent_pid: int) -> ManagedProcess:
        process = ManagedProcess(pid)
        parent = self._managed.get(parent_pid)
        if parent is not None:
            followed = parent.decision.follows_children if parent.decision else False
            process.inherited = parent.decision.rule if parent.decision and followed else parent.inherited
        self._managed[pid] = process
        return process

    def _exited(self, pid: int, now_ns: int) -> None:
        process = self._managed.get(pid)
        if process is None:
            return
        self._reconciler.watch_no_more(process)
        if self._tracer.request_of(pid) is not None:
            # Its last report takes a moment; and it still runs if only its first thread has ended.
            self._agenda.set(pid, now_ns)
            return
        self._forget(process)

    def _forget(self, process: ManagedProcess) -> None:
        self.short_lived_total += process.id is None
        if process.missed_by:
            self.missed_total[process.missed_by] += 1
        del self._managed[process.pid]
        self._agenda.drop(process.pid)

    # Checks of one process.

    def _look(self, pid: int, now_ns: int) -> bool:
        """Bring one process into its decided state; returns whether that took long."""
        process = self._managed.get(pid)
        if process is None:
            return False
        ended = self._tracer.request_of(pid) is not None and not self._tracer.still_traced(pid)
        stat = self._processes.stat(pid)
        if stat is None:
            if self._tracer.request_of(pid) is not None:
                return ended  # it still has threads
            self._reconciler.watch_no_more(process)
            self._forget(process)
            return ended
        process = self._identified(process, stat)
        if ended and process.state is SupervisionState.TRACED:
            self._reconciler.watch_no_more(process)
            process.begin_anew()
        if process.manual:
            return ended
        decision = self._decide(process, stat)
        if process.decision is not None and process.decision != decision:
            # A refusal under another rule need not hold under this one.
            process.retries = 0
            process.be(SupervisionState.DECIDING)
        process.decision = decision
        return self._reconciler.follow(process, decision, now_ns) or ended

    def _identified(self, process: ManagedProcess, stat: ProcessStat) -> ManagedProcess:
        """The process, or a new one if its pid was reused."""
        if process.id is not None and process.id != stat.id:
            self._reconciler.watch_no_more(process)
            self._forget(process)
            process = self._appeared(stat.id.pid, stat.parent_pid)
        process.id, process.comm = stat.id, stat.comm
        return process

    def _decide(self, process: ManagedProcess, stat: ProcessStat) -> Decision:
        parent = self._managed.get(stat.parent_pid)
        if process.inherited not in self._policy.rules:
            process.inherited = None
        if parent is not None and parent.decision is not None and parent.decision.follows_children:
            process.inherited = parent.decision.rule
        return self._policy.decide(self._processes.subject(stat), self._own_pid, process.inherited)
