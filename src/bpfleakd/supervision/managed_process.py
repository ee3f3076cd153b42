"""The supervisor's data on a process of this host, and when to check it next."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from bpfleakd.model.process import MANUAL, ProcessId, TracingMode
from bpfleakd.model.supervision import SupervisionState
from bpfleakd.process.policy.rules import Decision, Rule
from bpfleakd.supervision.growth_watcher import Open

# Stands for the end of a window of tracing, whatever it has shown.
AT_ONCE = 0
_FROM_THE_START = (TracingMode.EXACT, TracingMode.SAMPLED, TracingMode.INSIDE)


@dataclass(slots=True)
class ManagedProcess:
    """A process. `manual_mode` is a user's request (OFF: to detach it), None without one.

    `id` and `decision` are None until the first check. `inherited` is the rule that it inherits from its
    parent; `watched` whether the watcher has it. Since its last exec: `retries` counts attempts to attach,
    `reading_since_ns` is when the first of them had to wait for its files, `was_traced` whether one
    succeeded. `opening` is a wanted window of tracing, `window_end_ns` the end of an open one.
    """

    pid: int
    inherited: Rule | None = field(default=None, init=False)
    id: ProcessId | None = field(default=None, init=False)
    comm: str = field(default="", init=False)
    decision: Decision | None = field(default=None, init=False)
    state: SupervisionState = field(default=SupervisionState.DECIDING, init=False)
    reason: str = field(default="", init=False)
    manual_mode: TracingMode | None = field(default=None, init=False)
    watched: bool = field(default=False, init=False)
    retries: int = field(default=0, init=False)
    reading_since_ns: int | None = field(default=None, init=False)
    was_traced: bool = field(default=False, init=False)
    opening: Open | None = field(default=None, init=False)
    window_end_ns: int | None = field(default=None, init=False)

    @property
    def manual(self) -> bool:
        """Whether a user, not the policy, attached or detached it."""
        return self.manual_mode is not None

    @property
    def mode(self) -> TracingMode:
        """Its mode, from a user's request or from the policy."""
        if self.manual_mode is not None:
            return self.manual_mode
        return self.decision.mode if self.decision else TracingMode.OFF

    @property
    def rule(self) -> str:
        """The origin of its mode: MANUAL, "rule 2", "default", what excludes it, or "" before a decision."""
        if self.manual:
            return MANUAL
        return self.decision.why if self.decision else ""

    def begin_anew(self) -> None:
        """Forget the decision: the process executes another program."""
        self.decision = None
        self.manual_mode = None
        self.retries = 0
        self.reading_since_ns = None
        self.was_traced = False
        self.opening = None
        self.window_end_ns = None
        self.be(SupervisionState.DECIDING)

    def be(self, state: SupervisionState, reason: str = "") -> None:
        """Change the state."""
        self.state, self.reason = state, reason
        self.was_traced |= state is SupervisionState.TRACED

    @property
    def missed_by(self) -> str:
        """The rule that requires tracing it from its start, if it was never traced; else ""."""
        wanted = self.decision is not None and self.decision.mode in _FROM_THE_START
        return self.rule if wanted and not self.manual and not self.was_traced else ""


class Agenda:
    """When each process is due: the last time set for it counts."""

    def __init__(self) -> None:
        self._due_ns: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def set(self, pid: int, due_ns: int) -> None:
        """Schedule `pid` for that time, replacing any earlier time."""
        self._due_ns[pid] = due_ns
        heapq.heappush(self._heap, (due_ns, pid))

    def drop(self, pid: int) -> None:
        """Remove a process."""
        self._due_ns.pop(pid, None)

    def due(self, now_ns: int) -> Iterator[int]:
        """Yield and remove the due processes, the earliest first."""
        while (due_ns := self.next_ns()) is not None and due_ns <= now_ns:
            _due_ns, pid = heapq.heappop(self._heap)
            del self._due_ns[pid]
            yield pid

    def next_ns(self) -> int | None:
        """The time of the next due process."""
        while self._heap and self._due_ns.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
