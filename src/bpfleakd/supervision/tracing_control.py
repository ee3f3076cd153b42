"""What the guard may do to tracing: the supervisor and the tracer, as it sees them."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence

from bpfleakd.supervision.budget import Usage
from bpfleakd.supervision.overhead_guard import Guarded
from bpfleakd.supervision.supervisor import Supervisor
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.tracer import Tracer

__all__ = ["LEVELS", "TracingControl"]

# As the policy says, sampled, sampled more sparsely, and not traced at all.
LEVELS = 4


class TracingControl:
    """overhead_guard.TracingControl. `shed` are further caches than the tracer's."""

    def __init__(self, tracer: Tracer, supervisor: Supervisor, shed: Sequence[Callable[[], None]]) -> None:
        self._tracer = tracer
        self._supervisor = supervisor
        self._shed = shed

    def guarded(self) -> Sequence[Guarded]:
        """All traced processes."""
        return [
            Guarded(traced.pid, self._usage(traced), traced.table.used_count)
            for traced in self._tracer.running()
        ]

    def _usage(self, traced: TracedProcess) -> Usage:
        counters = traced.counters
        is_exempt = self._supervisor.is_manual(traced.pid)
        return Usage(counters.probe_hits, counters.recorded, is_exempt, traced.request.level)

    def set_level(self, pid: int, level: int, reason: str) -> None:
        """Sample it, and at higher levels more sparsely."""
        self._tracer.set_level(pid, level, reason)

    def evict(self, pid: int, reason: str, now_ns: int) -> None:
        """Stop tracing a process."""
        self._supervisor.evict(pid, reason, now_ns)

    def drop_caches(self) -> None:
        """Let go of names, old reports and symbols, and give the memory back."""
        self._tracer.drop_caches()
        for shed in self._shed:
            shed()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)
