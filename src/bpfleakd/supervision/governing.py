"""What the guard may do to tracing: the supervisor and the monitor, as it sees them."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence

from bpfleakd.analysis.budget import Usage
from bpfleakd.supervision.guard import Guarded
from bpfleakd.supervision.supervisor import Supervisor
from bpfleakd.tracing.monitor import Monitor

__all__ = ["LEVELS", "Governing"]

# As the policy says, sampled, sampled more sparsely, and not traced at all.
LEVELS = 4


class Governing:
    """monitor.guard.Governor. `shed` are further caches than the monitor's."""

    def __init__(self, monitor: Monitor, supervisor: Supervisor, shed: Sequence[Callable[[], None]]) -> None:
        self._monitor = monitor
        self._supervisor = supervisor
        self._shed = shed

    def guarded(self) -> Sequence[Guarded]:
        """All traced processes."""
        return [
            Guarded(pid, Usage(hits, recorded, self._supervisor.is_by_hand(pid)), sites)
            for pid, hits, recorded, sites in self._monitor.usages()
        ]

    def set_level(self, pid: int, level: int) -> None:
        """Sample it, and at higher levels more sparsely."""
        self._monitor.set_level(pid, level)

    def give_up(self, pid: int, reason: str, now_ns: int) -> None:
        """Stop tracing a process."""
        self._supervisor.give_up(pid, reason, now_ns)

    def shed_caches(self) -> None:
        """Let go of names, old reports and symbols, and give the memory back."""
        self._monitor.shed_caches()
        for shed in self._shed:
            shed()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)
