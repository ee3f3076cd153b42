"""The live heap after V8's collections, from V8's own records.

A collection of the whole heap marks all objects, at once or incrementally: the rest was alive. After a
scavenge, which collects the young generation, at most the remaining objects are alive.

Each thread that runs JavaScript has a separate heap. The figure of the process is their sum: after the last
collection of each, or after the last full one. A heap without a full collection counts as 0 in the latter.

Each tick reads it, by one read of memory per heap, without any work of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from bpfleakd.errors import BpfleakdError
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.runtime import LiveHeap
from bpfleakd.runtimes.v8.gc_tracer import GcTracer, OtherObject, Ring, TracerLayout, find_tracer
from bpfleakd.runtimes.v8.heap_pages import heaps_of

# Worker threads come and go. Reading the 400 headers of 100 MB takes a millisecond.
_FIND_EVERY_NS = 10_000_000_000
# A reading in the middle of a change is inconsistent. After this many in a row, it is another object.
_FAILURES_MAX = 10
# Until the first heap has been collected.
_FIND_FIRST_EVERY_NS = 1_000_000_000


class V8LiveHeap:
    """The collections of one process since the attach. `failure` is why they are unknown."""

    def __init__(
        self,
        memory: RemoteMemory,
        mappings: Callable[[], Sequence[Mapping]],
        layout: TracerLayout | None,
    ) -> None:
        """`layout` is that of the file that contains V8; None if unknown."""
        self._memory = memory
        self._mappings = mappings
        self._layout = layout
        self._heaps: dict[int, _Heap] = {}
        self._not_collected: set[int] = set()
        self._due_ns = 0
        self._count = 0
        self.failure = None if layout else "this build of V8 does not publish where it counts them"
        self.watched_since_ns: int | None = None

    @property
    def heap_bytes(self) -> int | None:
        """The bytes that the last collection of each heap left; None before the first."""
        return sum(heap.end_bytes for heap in self._heaps.values()) or None

    def read(self, now_ns: int) -> Sequence[LiveHeap]:
        """The collections since the last call: the last one, a full one if there was any."""
        if self._layout is None:
            return ()
        if now_ns >= self._due_ns:
            self._find(self._layout)
            self._due_ns = now_ns + (_FIND_EVERY_NS if self._heaps else _FIND_FIRST_EVERY_NS)
        if self.failure:
            return ()
        if self.watched_since_ns is None:
            self.watched_since_ns = now_ns
        self._memory.renew()
        full, others = self._refresh()
        self._count += full + others
        heaps = self._heaps.values()
        if full:
            return [LiveHeap(now_ns, sum(heap.full_bytes for heap in heaps), self._count)]
        if others:
            return [LiveHeap(now_ns, sum(heap.end_bytes for heap in heaps), self._count, is_full=False)]
        return ()

    def _find(self, layout: TracerLayout) -> None:
        try:
            heaps = heaps_of(self._memory, self._mappings())
        except (OSError, BpfleakdError) as error:
            self.failure = str(error)
            return
        failure = None if heaps else "there are no pages of a heap"
        for address, size_bytes in heaps.items():
            if address in self._heaps:
                continue
            try:
                tracer = find_tracer(self._memory, address, size_bytes, layout)
                if tracer is None:
                    self._not_collected.add(address)
                else:
                    self._heaps[address] = _Heap(tracer, is_first=address in self._not_collected)
            except OSError:
                # Its thread has ended meanwhile.
                continue
            except ValueError as error:
                failure = str(error)
        self.failure = None if self._heaps else failure

    def _refresh(self) -> tuple[int, int]:
        """Read all heaps; returns the numbers of collections of whole heaps, and of others."""
        full = others = 0
        for address, heap in list(self._heaps.items()):
            try:
                new_full, new_others = heap.refresh()
            except (OSError, OtherObject):
                # Its thread has ended.
                del self._heaps[address]
                continue
            except ValueError:
                heap.failures += 1
                if heap.failures >= _FAILURES_MAX:
                    del self._heaps[address]
                continue
            heap.failures = 0
            full, others = full + new_full, others + new_others
        return full, others


class _Heap:
    """One heap: the bytes alive after its last collection, and after the last full one that was seen."""

    def __init__(self, tracer: GcTracer, *, is_first: bool) -> None:
        """`is_first`: all of its collections came since the attach. Raises OSError or ValueError."""
        self._tracer = tracer
        last = tracer.read()
        if is_first:
            last = replace(last, rings=tuple(Ring(0, ()) for _ in last.rings), end_bytes=0)
        self._last = last
        self.end_bytes = last.end_bytes
        self.full_bytes = 0
        self.failures = 0
        """How many readings in a row made no sense."""

    def refresh(self) -> tuple[int, int]:
        """The number of full collections since the last call, and of others, of which only the last is seen.

        Raises OSError, or ValueError if the reading is inconsistent.
        """
        now = self._tracer.read()
        last, self._last = self._last, now
        sizes_bytes = [
            size
            for ring, before in zip(self._last.rings, last.rings, strict=True)
            for size in ring.since(before)
        ]
        if sizes_bytes:
            self.end_bytes = self.full_bytes = sizes_bytes[-1]
            return len(sizes_bytes), 0
        if self._last.end_bytes in (0, self.end_bytes):
            return 0, 0
        self.end_bytes = self._last.end_bytes
        return 0, 1
