"""CPython's collector of cycles, read from outside: how often it ran, and when it will look at all objects.

Python counts references, so only objects in cycles wait for the collector. Those that it has found alive
twice wait for a full collection, which may take minutes: it comes after eleven collections of the middle
generation, and only if a quarter as many objects have become old as there were before (Modules/gcmodule.c,
from 3.13 on Python/gc.c, `gc_collect_generations`).

Layout: struct _gc_runtime_state of Include/internal/pycore_gc.h (3.14: pycore_interp_structs.h). It holds a
pointer to itself, by which it is recognized. The incremental collector of 3.14.0 to 3.14.4 has none.
"""

from __future__ import annotations

import math
import struct

from msgspec import Struct

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.layout import CPythonLayout

_ENABLED, _GENERATION_BYTES, _THRESHOLD = 12, 24, 16
# In some releases of 3.13, generations are aligned to 4 bytes (seen: 3.13.5 of Debian 13).
_GENERATIONS = (20, 24)
# By version: generation0, generation_stats, long_lived_total. The rest is the same from 3.9 to 3.14.
_PLACES, _PLACES_3_14 = (96, 128, 224), (256, 120, 240)
_STATS_BYTES = 24
# An old generation is looked at once this part of it is new.
_PENDING_SHARE = 0.25


class CollectorState(Struct, frozen=True):
    """`middle_count` and `full_count` are numbers of collections, `objects` what the last full one left.

    A full one comes once more than `threshold` of the middle generation have come, `since_full` so far, and
    `pending` objects are many.
    """

    is_enabled: bool
    middle_count: int
    full_count: int
    threshold: int
    since_full: int
    objects: int
    pending: int


def read_collector(memory: RemoteMemory, layout: CPythonLayout, runtime: int) -> CollectorState | None:
    """The present collector of a process; None if it has several interpreters or the layout is unknown.

    `runtime` is the address of `_PyRuntime`. Raises OSError.
    """
    memory.renew()
    interpreter = memory.word(runtime + layout.interpreters_head)
    if not interpreter or memory.word(interpreter + layout.interpreter_next):
        return None
    collector = interpreter + layout.interpreter_gc
    generation0, stats, total = _PLACES_3_14 if layout.version >= (3, 14) else _PLACES
    generations = memory.word(collector + generation0)
    if generations - collector not in _GENERATIONS:
        return None
    (enabled,) = struct.unpack("<i", memory.read(collector + _ENABLED, 4))
    first, _middle, old = (
        struct.unpack("<ii", memory.read(generations + _THRESHOLD + row * _GENERATION_BYTES, 8))
        for row in range(3)
    )
    objects, pending = struct.unpack("<qq", memory.read(collector + total, 16))
    return CollectorState(
        is_enabled=bool(enabled and first[0]),
        middle_count=memory.word(collector + stats + _STATS_BYTES),
        full_count=memory.word(collector + stats + 2 * _STATS_BYTES),
        threshold=old[0],
        since_full=old[1],
        objects=objects,
        pending=pending,
    )


class CollectorLooks:
    """What full collections have looked at, from states of one collector over time, in ns of CLOCK_MONOTONIC.

    `looked_ns`: objects from before then have been looked at; `count`: how often that was seen.
    """

    def __init__(self) -> None:
        self.looked_ns: int | None = None
        self.count = 0
        self._first: tuple[int, CollectorState] | None = None
        self._last: tuple[int, CollectorState] | None = None

    def take(self, at_ns: int, state: CollectorState | None) -> None:
        """Add a state, read after `at_ns`."""
        last, self._last = self._last, None if state is None else (at_ns, state)
        if state is None or last is None or last[1].full_count > state.full_count:
            self._first = self._last
        elif state.full_count > last[1].full_count:
            # It came after the last state was read, so objects from before then were there.
            self.looked_ns, self._first = last[0], self._last
            self.count += 1

    def due_s(self) -> float:
        """Seconds until the next full collection, at the rate since the last one.

        Infinite if none will come, or if the collector cannot be read; 0 before the second state.
        """
        if self._first is None or self._last is None:
            return math.inf
        (first_ns, first), (last_ns, last) = self._first, self._last
        if not last.is_enabled:
            return math.inf
        if last_ns == first_ns:
            return 0.0
        seconds = (last_ns - first_ns) / 1e9
        collections = last.threshold + 1 - last.since_full
        objects = _PENDING_SHARE * last.objects - last.pending
        return max(
            _time_s(collections, (last.middle_count - first.middle_count) / seconds),
            _time_s(objects, (last.pending - first.pending) / seconds),
        )


def _time_s(needed: float, per_s: float) -> float:
    """When so many more have come."""
    if needed <= 0:
        return 0.0
    return needed / per_s if per_s > 0 else math.inf
