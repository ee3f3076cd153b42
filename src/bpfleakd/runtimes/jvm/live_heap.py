"""The live heap after collections of a JVM, from its counters.

What they tell depends on the collector:
- Serial, Parallel and a full collection of G1 look at all objects: what is used afterwards was alive.
- After a collection of the young generation, at most what is used in the old one and in the survivor spaces
  is alive.
- G1 hardly ever makes full collections. It marks all objects while the program runs, with two pauses (remark
  and cleanup). The next young collection prepares, and the ones after it collect the regions with most
  garbage, if there are such. Once it has stopped doing that, it tolerates at most this garbage: 15 % of each
  region (G1MixedGCLiveThresholdPercent) and 5 % of the heap (G1HeapWastePercent). The rest was alive.
- ZGC and Shenandoah tell what is used while they collect: at most that is alive.

Counters are read once per tick. Of several collections since the last tick, only the last one is seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from bpfleakd.model.runtimes.managed import AreaKind, RuntimeArea
from bpfleakd.runtimes.runtime import LiveHeap

_COLLECTOR = "sun.gc.collector"
_OLD = "sun.gc.generation.1.space.0.used"
_CAPACITIES = ("sun.gc.generation.0.capacity", "sun.gc.generation.1.capacity")
_SURVIVORS = ("sun.gc.generation.0.space.1.used", "sun.gc.generation.0.space.2.used")
_METASPACE = ("sun.gc.metaspace.used", "sun.gc.metaspace.capacity")
_NAMES = (
    *(f"{_COLLECTOR}.{number}.{what}" for number in range(3) for what in ("name", "invocations")),
    *(_OLD, *_CAPACITIES, *_SURVIVORS, *_METASPACE),
)
_UNTOLD = ("Z ", "ZGC", "Shenandoah")
# The garbage that G1 tolerates in a region, and in the heap.
_G1_REGION_SHARE, _G1_HEAP_SHARE = 0.15, 0.05
# Of a marking by G1: remark, cleanup.
_PAUSES = 2
# After this many young collections without a fall of the old generation, none collects it any more; more
# after the first pause of a marking, since a JVM may omit the second one.
_IDLE_AFTER_CLEANUP, _IDLE_AFTER_REMARK = 3, 24
# If markings follow one another, this many are enough: the next one begins when the objects marked by the
# previous one have been collected.
_MARKINGS = 3

Counters = dict[str, int | str]


class _Counts(Struct, frozen=True):
    """The numbers of young collections, full ones, and pauses of concurrent ones."""

    young: int
    full: int
    concurrent: int

    @property
    def total(self) -> int:
        return self.young + self.full + self.concurrent


class JavaLiveHeap:
    """The collections of one process since the attach. `failure` is why they are unknown.

    `metaspace` may be tens of seconds old: the JVM counts it at some collections only.
    """

    def __init__(self, read: Callable[[Sequence[str]], Counters]) -> None:
        """`read` returns counters, and raises OSError or ValueError."""
        self._read = read
        self._last: _Counts | None = None
        self._old_bytes = 0
        self._marking: _Marking | None = None
        self._count = 0
        self.failure: str | None = None
        self.watched_since_ns: int | None = None
        self.last_bytes: int | None = None
        self.metaspace: RuntimeArea | None = None

    def read(self, now_ns: int) -> Sequence[LiveHeap]:
        """The collections since the last call, oldest first."""
        try:
            counters = self._read(_NAMES)
        except (OSError, ValueError) as error:
            self.failure = str(error)
            return ()
        if _OLD not in counters:
            self.failure = "its collector keeps no counters"
            return ()
        self.failure = None
        if _METASPACE[0] in counters:
            figures = (_number(counters, name) for name in _METASPACE)
            self.metaspace = RuntimeArea(AreaKind.METASPACE, *figures)
        counts = _Counts(*(_number(counters, f"{_COLLECTOR}.{number}.invocations") for number in range(3)))
        before, self._last = self._last, counts
        if before is None:
            self.watched_since_ns = now_ns
            self._marking = _Marking(counts)
        if before is None or counts == before:
            return ()
        self._count += max(0, counts.total - before.total)
        return self._told(counters, before, counts, now_ns)

    def heap_bytes(self) -> int | None:
        """The size of the heap, with garbage and free room; None if unknown."""
        try:
            return sum(_number(self._read(_CAPACITIES), name) for name in _CAPACITIES) or None
        except (OSError, ValueError):
            return None

    def _told(self, counters: Counters, before: _Counts, counts: _Counts, now_ns: int) -> list[LiveHeap]:
        old_bytes = _number(counters, _OLD)
        used_bytes = old_bytes + sum(_number(counters, name) for name in _SURVIVORS)
        falls, self._old_bytes = old_bytes < self._old_bytes, old_bytes
        self.last_bytes = used_bytes
        names = [str(counters.get(f"{_COLLECTOR}.{number}.name", "")) for number in range(3)]
        if any(name.startswith(_UNTOLD) for name in names):
            return [LiveHeap(now_ns, used_bytes, self._count, is_full=False)]
        left_bytes = self._marking.left(before, counts, old_bytes, falls=falls) if self._marking else None
        if left_bytes is not None:
            capacity_bytes = sum(_number(counters, name) for name in _CAPACITIES)
            least_bytes = (1 - _G1_REGION_SHARE) * left_bytes - _G1_HEAP_SHARE * capacity_bytes
            return [LiveHeap(now_ns, used_bytes, self._count, True, max(0, round(least_bytes)))]
        return [LiveHeap(now_ns, used_bytes, self._count, counts.full > before.full)]


class _Marking:
    """The progress of G1 in collecting what it has marked."""

    def __init__(self, counts: _Counts) -> None:
        # Pauses up to a full collection, which ends a marking, so the next pause is a remark. A marking from
        # before the attach is unknown.
        self._base = counts.concurrent if counts.full else 0
        self._is_sure = not counts.full
        self._is_whole = False
        # Young collections yet to come without a fall of the old generation; 0: nothing is marked.
        self._idle_left = 0
        self._told = self._collected(counts)
        # The minimum of the old generation, since the last answer and since the last pause.
        self._low_bytes = self._last_low_bytes = math.inf

    def left(self, before: _Counts, counts: _Counts, old_bytes: int, *, falls: bool) -> float | None:
        """The size of the old generation once the marked garbage was collected, as far as G1 does that.

        In bytes; None if it has not been collected since the last answer.
        """
        self._low_bytes = min(self._low_bytes, old_bytes)
        if counts.full > before.full:
            self._base, self._is_sure, self._idle_left = counts.concurrent, True, 0
            return self._answer(0, math.inf)
        if counts.concurrent > before.concurrent:
            self._is_whole = self._is_sure and (counts.concurrent - self._base) % _PAUSES == 0
            self._idle_left = _IDLE_AFTER_CLEANUP if self._is_whole else _IDLE_AFTER_REMARK
            self._last_low_bytes = math.inf
            collected = self._collected(counts)
            return self._answer(collected, self._low_bytes) if collected >= self._told + _MARKINGS else None
        self._last_low_bytes = min(self._last_low_bytes, old_bytes)
        young = counts.young - before.young
        if not self._idle_left or young <= 0:
            return None
        if falls:
            # The first collection that does not collect old regions is the end.
            self._idle_left = 1 if self._is_whole else _IDLE_AFTER_REMARK
            return None
        self._idle_left = max(0, self._idle_left - young)
        if self._idle_left:
            return None
        return self._answer((counts.concurrent - self._base) // _PAUSES, self._last_low_bytes)

    def _collected(self, counts: _Counts) -> int:
        """How many markings have certainly ended: each ends by the first pause of another."""
        return max(0, (counts.concurrent - self._base - (1 if self._is_sure else 2)) // _PAUSES)

    def _answer(self, collected: int, left_bytes: float) -> float | None:
        self._told, self._low_bytes = collected, math.inf
        return left_bytes if left_bytes < math.inf else None


def _number(counters: Counters, name: str) -> int:
    value = counters.get(name, 0)
    return value if isinstance(value, int) else 0
