"""Finds the functions that allocate retained objects, by sampling in windows while the heap grows.

Rules:
- In a window, the process walks its stack for each 100 kB that it allocates. A window with more than
  `_RATE_MAX` samples a second is short; after it there is a pause of `_PAUSE_TIMES` its length.
- A cheap window lasts as long as the heap grows; an expensive one until a full collection, and a minute at
  most.
- The results of a window are kept until the next one has seen enough collections. They state their age, since
  objects retained then may be garbage now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bpfleakd.runtimes.dotnet.diagnostics import Endpoint, Provider, Session
from bpfleakd.runtimes.dotnet.event_stream import EventStream
from bpfleakd.runtimes.dotnet.stream_jobs import ALLOCATIONS_JOB, Allocated
from bpfleakd.runtimes.runtime import Retained
from bpfleakd.sandbox.helpers import Helpers

_NS_PER_S = 1_000_000_000
# GC at the level of AllocationTick; GCHeapSurvivalAndMovement.
_SAMPLES = Provider(0x1 | 0x40_0000, 5)
_BUFFER_MIB = 8
_RATE_MAX = 500
_SHORTEST_WINDOW_NS = 10 * _NS_PER_S
_LONGEST_DEAR_NS = 60 * _NS_PER_S
_PAUSE_NS = 60 * _NS_PER_S
_PAUSE_TIMES = 10
# A leaked object outlives several collections.
_COLLECTIONS_MIN = 3
# An open window answers each second or so.
_FRESH_NS = 10 * _NS_PER_S
_NOTHING = Allocated(0, 0, 0, ())


class DotnetAllocations:
    """The samples of one process. Nothing is sampled until `want` was called."""

    def __init__(self, helpers: Helpers, endpoint: Callable[[], Endpoint]) -> None:
        self._helpers = helpers
        self._endpoint = endpoint
        self._stream: EventStream[Allocated] | None = None
        self._window = _NOTHING
        self._before = _NOTHING
        # The last time at which each of the two was known to be true.
        self._window_ns = 0
        self._before_ns = 0
        self._now_ns = 0
        self._began_ns = 0
        self._due_ns = 0
        self._is_wanted = False

    @property
    def failure(self) -> str | None:
        """Why there are no samples, if there are none."""
        return self._stream.failure if self._stream else None

    def want(self, *, wanted: bool) -> None:
        """Set whether the heap seems to grow."""
        self._is_wanted = wanted

    def refresh(self, now_ns: int) -> None:
        """Process new results, and open or close a window, without waiting."""
        self._now_ns = now_ns
        if self._stream is None:
            if self._is_wanted and now_ns >= self._due_ns:
                self._open(now_ns)
            return
        answers = self._stream.read(now_ns)
        if answers:
            self._window, self._window_ns = answers[-1], now_ns
        if self._is_over(now_ns):
            self._close(now_ns)

    def retained(self) -> Sequence[Retained]:
        """The survivors of collections, by type and stack, most bytes first."""
        shown, at_ns = self._shown()
        age_ns = self._now_ns - at_ns
        return [
            Retained(
                one.type,
                one.stack,
                one.live_bytes,
                one.samples,
                one.growth_bytes_per_s,
                is_proven=one.is_proven,
                age_s=age_ns / _NS_PER_S if age_ns > _FRESH_NS else 0.0,
            )
            for one in shown.retained
        ]

    def close(self) -> None:
        """End the session."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _shown(self) -> tuple[Allocated, int]:
        """The results of the last window that has any, and their time."""
        if self._window.collections >= _COLLECTIONS_MIN or not self._before.retained:
            return self._window, self._window_ns
        return self._before, self._before_ns

    def _open(self, now_ns: int) -> None:
        self._before, self._before_ns = self._shown()
        self._window, self._window_ns = _NOTHING, now_ns
        self._began_ns = now_ns
        self._stream = EventStream(self._helpers, ALLOCATIONS_JOB, Allocated, self._start, now_ns)

    def _is_over(self, now_ns: int) -> bool:
        passed_ns = now_ns - self._began_ns
        if passed_ns < _SHORTEST_WINDOW_NS:
            return False
        has_proof = self._window.collections >= _COLLECTIONS_MIN and self._window.proofs > 0
        has_learnt = has_proof or passed_ns > _LONGEST_DEAR_NS
        return has_learnt and (self._is_dear(passed_ns) or not self._is_wanted)

    def _is_dear(self, passed_ns: int) -> bool:
        return self._window.ticks * _NS_PER_S > _RATE_MAX * passed_ns

    def _close(self, now_ns: int) -> None:
        self.close()
        passed_ns = now_ns - self._began_ns
        self._due_ns = now_ns + (_PAUSE_TIMES * passed_ns if self._is_dear(passed_ns) else _PAUSE_NS)

    def _start(self) -> Session:
        return self._endpoint().start([_SAMPLES], buffer_mib=_BUFFER_MIB, rundown=False)
