"""The guard's interface to tracing: to the supervisor and the tracer."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence

from msgspec import Struct

from bpfleakd.supervision.budget import Usage
from bpfleakd.supervision.supervisor import Supervisor
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.tracer import Tracer

# As the policy requires, sampled, sampled more sparsely, and not traced at all.
LEVELS = 4


class Guarded(Struct, frozen=True):
    """The guard's data on a traced process; `sites` is the number of call sites in the daemon's memory."""

    pid: int
    usage: Usage
    sites: int


class TracingControl:
    """Measures, limits and ends the tracing of processes. `caches` drop caches other than the tracer's."""

    def __init__(self, tracer: Tracer, supervisor: Supervisor, caches: Sequence[Callable[[], None]]) -> None:
        self._tracer = tracer
        self._supervisor = supervisor
        self._caches = caches

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
        """Record fewer blocks of a process the higher the level; 0 is as the policy requires."""
        self._tracer.set_level(pid, level, reason)

    def evict(self, pid: int, reason: str, now_ns: int) -> None:
        """Stop tracing a process, keep its report, and start again only on request."""
        self._supervisor.evict(pid, reason, now_ns)

    def drop_caches(self) -> None:
        """Drop names, old reports and symbols, and return the memory to the kernel."""
        self._tracer.drop_caches()
        for drop in self._caches:
            drop()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)
