"""The managed heap of a traced process: its collections, and the verdict on the sites that commit it.

The collector commits memory on behalf of the method that allocates at that moment, garbage or not. bpfleakd
charges that method with the commits, but the verdict comes from what collections leave alive: while the
method that keeps it is unknown, the heap leaks, and none of these methods does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.log_pause import LogPause
from bpfleakd.model.code.stack import Frame
from bpfleakd.model.runtimes.managed import ManagedHeap, RuntimeArea
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import SiteVerdict, Verdict
from bpfleakd.runtimes.runtime import LiveHeap
from bpfleakd.tracing.java_memory import JavaUse, with_use
from bpfleakd.tracing.owned_memory import Looks, OwnedMemory
from bpfleakd.verdicts.managed_heap import Collections, classify_managed_heap

_COLLECTIONS_MAX = 4_096
# The kinds of memory that a collector commits; V8 allocates the data on its pages with malloc.
_KINDS = (AllocationKind.COMMIT, AllocationKind.MMAP, AllocationKind.PYTHON)
_KINDS_OF_V8 = (*_KINDS, AllocationKind.HEAP)
_COLLECTORS = ("libcoreclr.so", "libclrgc.so", "libclrgcexp.so", "libjvm.so")
_OF_COLLECTOR = (
    *("gc_heap::", "GCHeap::"),
    # Java's: Serial, Parallel, G1, ZGC, Shenandoah. Its metaspace and code cache are not part of the heap.
    *("CardGeneration::", "DefNewGeneration::", "PSVirtualSpace::", "G1PageBasedVirtualSpace::"),
    *("ZPhysicalMemory", "ShenandoahHeap"),
)
# What V8 has pages by, and what it keeps about each: lists of free places, remembered slots.
_V8, _JVM = "V8", "JVM"
_NAMESPACES_OF_V8 = ("v8::", "heap::base::")
_OF_V8 = tuple(
    f"v8::internal::{name}"
    for name in (
        *("MemoryAllocator::", "MemoryChunk::", "Page::", "Scavenger", "Sweeper", "SlotSet::", "MarkCompact"),
        *("CompactionSpace::", "PagedSpace", "NewSpace::", "SemiSpace", "LargeObjectSpace::", "Evacuat"),
    )
)
# Functions between V8 and the allocator.
_LIBRARIES = ("libc.so", "libstdc++.so", "operator new(", "std::")
_RISING = (Verdict.LEAK, Verdict.GROWING)
_EXPLAINED = "explained: memory of the managed heap, which grows by what the sites of kind managed keep"
_LEAK_LOG_PAUSE_NS = 600_000_000_000


class HeapTracking:
    """The collections of one process since `began_ns`. `heap` is the last verdict; None without a runtime
    that reports them. `rows` are the growing sites that commit the heap, `own` those of the runtime's own
    memory. `is_held`: the function that keeps what stays is known. `fills`: which bounded container most of
    the growth may fill, in words; None without one. `teller` is the option of `bpfleakctl types` that tells
    the function on request. `owned` are sites of memory that its objects may own."""

    def __init__(self) -> None:
        self.heap: ManagedHeap | None = None
        self.rows: NDArray[np.intp] = np.zeros(0, np.intp)
        self.own: NDArray[np.intp] = np.zeros(0, np.intp)
        self.is_held = False
        self.fills: str | None = None
        self.teller: str | None = None
        self.beside: dict[JavaUse, float] = {}
        self.owned = OwnedMemory()
        self._points: list[LiveHeap] = []
        self._count = 0
        self._full_count = 0
        self.leak_log = LogPause(_LEAK_LOG_PAUSE_NS)

    @property
    def may_grow(self) -> bool:
        """Whether to search for the function that makes the heap grow."""
        return self.heap is None or self.heap.verdict is not Verdict.STEADY

    def looks(self, began_ns: int, until_ns: int) -> Looks:
        """What collections until `until_ns` have looked at (CLOCK_MONOTONIC).

        A collector that tolerates garbage marks while the program runs, and keeps what is young at that time
        (G1 then treats all class loaders as alive): it has seen what the previous full one left.
        """
        points = [one for one in self._points if one.at_ns <= until_ns]
        full = [one for one in points if one.is_full][-2:]
        if full and full[-1].least_bytes is not None:
            full.pop()
        counts = tuple(((one.at_ns - began_ns) / 1e9, one.collections) for one in points)
        return Looks(
            (full[-1].at_ns - began_ns) / 1e9 if full else None, counts[-1][0] if counts else None, counts
        )

    def note(self, collections: Iterable[LiveHeap]) -> None:
        """Add collections."""
        for one in collections:
            self._points.append(replace(one, types=()))
            self._count += 1
            self._full_count += one.is_full
        if len(self._points) > _COLLECTIONS_MAX:
            # Drops every second one that is not exact.
            self._points = [one for place, one in enumerate(self._points) if one.is_full or place % 2][
                -_COLLECTIONS_MAX:
            ]

    def judge(
        self,
        runtime: str,
        since_ns: int,
        now_ns: int,
        leak_after_s: float,
        areas: tuple[RuntimeArea, ...] = (),
        limit_bytes: int | None = None,
    ) -> None:
        """Judge the collections reported by the runtime so far."""
        collections = Collections(
            np.array([(one.at_ns - since_ns) / 1e9 for one in self._points]),
            np.array([one.live_bytes for one in self._points], np.float64),
            np.array([one.is_full for one in self._points], np.bool_),
            np.array(
                [one.live_bytes if one.least_bytes is None else one.least_bytes for one in self._points],
                np.float64,
            ),
        )
        is_read = any(one.is_reading for one in self._points)
        watched_s = (now_ns - since_ns) / 1e9
        was_leak = self.heap is not None and self.heap.verdict is Verdict.LEAK
        heap = classify_managed_heap(
            runtime,
            collections,
            watched_s,
            leak_after_s,
            is_read=is_read,
            often_full=runtime == _V8,
            was_leak=was_leak,
            limit_bytes=limit_bytes,
        )
        if self.fills and heap.verdict is Verdict.LEAK:
            heap = replace(heap, verdict=Verdict.GROWING, reason=f"{heap.reason}; {self.fills}")
        self.heap = replace(
            heap,
            collections=self._count,
            full_collections=self._full_count,
            areas=areas,
        )

    @property
    def _unknown_keeper(self) -> str:
        asks = f": ask by `bpfleakctl types PID {self.teller}`" if self.teller else ""
        return f"the function that keeps it is unknown{asks}"

    @property
    def of_process(self) -> ManagedHeap | None:
        """The heap for the verdict on the process; the reason says how to find the keeper, if unknown."""
        if self.heap is None or self.is_held:
            return self.heap
        is_leak = self.heap.verdict is Verdict.LEAK
        if not is_leak and not (self.heap.verdict is Verdict.GROWING and self.teller):
            return self.heap
        return replace(self.heap, reason=f"{self.heap.reason}; {self._unknown_keeper}")

    def may_commit(self, key: SiteKey) -> bool:
        """Whether a site is of a kind that this heap commits memory by."""
        kinds = _KINDS_OF_V8 if self.heap is not None and self.heap.runtime == _V8 else _KINDS
        return key.kind in kinds

    def may_be_own(self, key: SiteKey) -> bool:
        """Whether a site is of a kind by which the runtime takes memory that is not for objects."""
        return self.heap is not None and self.heap.runtime == _JVM and key.kind is AllocationKind.HEAP

    def is_committed_by(self, key: SiteKey, frames: Sequence[Frame]) -> bool:
        """Whether a site allocates memory for objects: a garbage collector's, or Python's arenas."""
        if key.kind is AllocationKind.PYTHON:
            return True
        if not self.may_commit(key) or self.heap is None:
            return False
        return _is_by_v8(frames) if self.heap.runtime == _V8 else _is_by_collector(frames)

    def on_site(
        self, key: SiteKey, frames: Sequence[Frame], verdict: SiteVerdict, row: int | None = None
    ) -> SiteVerdict:
        """The verdict on a site in a row of the table; the heap's verdict for one that commits the heap."""
        if verdict.verdict is Verdict.LEAK and row in self.owned.unconfirmed:
            reason = f"{verdict.reason}; {self.owned.unconfirmed[row]}"
            verdict = replace(verdict, verdict=Verdict.GROWING, reason=reason)
        if self.heap is None or verdict.verdict not in _RISING or not self.is_committed_by(key, frames):
            return with_use(verdict, key, frames)
        if self.heap.verdict in _RISING and self.is_held:
            # One problem, shown where it is.
            return SiteVerdict(Verdict.STEADY, verdict.confidence, _EXPLAINED, 0.0)
        if self.heap.verdict is Verdict.LEAK:
            reason = f"{self.heap.reason}; {self._unknown_keeper}"
            if key.kind is AllocationKind.PYTHON:
                # Python frees garbage at once: who uses up memory for objects mostly keeps them.
                return replace(verdict, verdict=Verdict.LEAK, reason=reason)
            reason = f"memory of the managed heap: {reason}"
            return SiteVerdict(Verdict.GROWING, verdict.confidence, reason, 0.0)
        confidence = 0.0 if self.heap.verdict is Verdict.UNKNOWN else verdict.confidence
        return SiteVerdict(self.heap.verdict, confidence, self.heap.reason, 0.0)


def _is_by_collector(frames: Sequence[Frame]) -> bool:
    return any(
        frame.module in _COLLECTORS and any(name in (frame.function or "") for name in _OF_COLLECTOR)
        for frame in frames
    )


def _is_by_v8(frames: Sequence[Frame]) -> bool:
    """Whether V8 allocated pages by itself: without a function that V8 called back in between."""
    # The first one is the allocator.
    functions = [
        frame.function or ""
        for frame in frames[1:]
        if not (frame.module or "").startswith(_LIBRARIES)
        and not (frame.function or "").startswith(_LIBRARIES)
    ]
    of_v8 = takewhile(lambda function: any(name in function for name in _NAMESPACES_OF_V8), functions)
    return any(name in function for function in of_v8 for name in _OF_V8)
