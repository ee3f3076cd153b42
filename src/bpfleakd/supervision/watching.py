"""What the supervisor and the watcher of growing memory say to each other.

The supervisor knows which processes there are, and alone attaches and detaches. The watcher looks at the
memory of those that the policy gives to it and says which deserve a closer look, and for how long.

    supervisor ── add, remove ──────────────▶ watcher      a process came, went, or is not to be watched
    supervisor ── step(now) at each tick ───▶ watcher
               ◀── [Open, Close, …] ─────────              what it wants
    supervisor ── opened, closed, failed ───▶ watcher      what came of it
    supervisor ── resumed ──────────────────▶ watcher      a window that an earlier daemon opened

All of it happens in the one thread that traces. `step` has to be quick (milliseconds for 1,000 processes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from bpfleakd.model.process import ProcessId, TracingMode
from bpfleakd.process.policy import Decision

__all__ = ["Action", "Close", "Open", "Watcher"]


@dataclass(frozen=True, slots=True)
class Open:
    """Attach in this mode, for `window_s` seconds; `reason` is shown ("grows by 3 MiB/s")."""

    process: ProcessId
    mode: TracingMode
    window_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Detach before the window is over; nothing if it is closed."""

    process: ProcessId
    reason: str


Action: TypeAlias = Open | Close


class Watcher(Protocol):
    """Watches the memory of processes, and asks for windows of tracing.

    A process is added with `watch` (it is never to be attached: no Open for it) or with `auto`.
    """

    def add(self, process: ProcessId, decision: Decision) -> None:
        """Watch a process from now on. For one that is watched already, take over the decision."""
        ...

    def remove(self, process: ProcessId) -> None:
        """Forget a process: it ended, executes another program, or is no longer to be watched.

        Nothing if it is not known. An open window of it is closed by the supervisor, without `closed`.
        """
        ...

    def step(self, now_ns: int) -> Sequence[Action]:
        """Do what is due at this time (CLOCK_MONOTONIC) and return what is wanted."""
        ...

    def opened(self, process: ProcessId, now_ns: int) -> None:
        """The window that was asked for is open: the process is being recorded."""
        ...

    def resumed(self, process: ProcessId, began_ns: int, now_ns: int) -> int:
        """A window is open since `began_ns`, by an earlier daemon; returns when it ends."""
        ...

    def closed(self, process: ProcessId, now_ns: int) -> None:
        """The window is over, by time or by Close; the last report of it is kept by the tracer."""
        ...

    def failed(self, process: ProcessId, now_ns: int, reason: str, *, for_good: bool) -> None:
        """It could not be attached: `for_good`, or only now (a limit was reached)."""
        ...
