"""The managed heap of a traced process: its collections, and what is said of the sites that commit it.

The collector takes memory in the name of whoever allocates at that moment, garbage or not. Its commits are
charged to that method, but no verdict is made of them: it is made of what collections leave alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model.managed import ManagedHeap
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.stack import Frame
from bpfleakd.model.verdict import SiteVerdict, Verdict
from bpfleakd.runtimes.runtime import LiveHeap
from bpfleakd.verdicts.managed_heap import Collections, classify_managed_heap

__all__ = ["HeapTracking", "commits_managed_heap", "may_commit_heap"]

_COLLECTIONS_MAX = 4_096
_COLLECTORS = ("libcoreclr.so", "libclrgc.so", "libclrgcexp.so", "libjvm.so")
_OF_COLLECTOR = (
    *("gc_heap::", "GCHeap::"),
    # Java's: Serial, Parallel, G1, ZGC, Shenandoah. Its metaspace and code cache are no part of the heap.
    *("CardGeneration::", "DefNewGeneration::", "PSVirtualSpace::", "G1PageBasedVirtualSpace::"),
    *("ZPhysicalMemory", "ShenandoahHeap"),
)
_RISING = (Verdict.LEAK, Verdict.GROWING)


class HeapTracking:
    """The collections of one process since `began_ns`. `heap` is the last verdict; None without a runtime
    that tells them. `rows` are the sites that commit the heap, as far as they grow. `is_held`: somebody is
    known who keeps what stays."""

    def __init__(self) -> None:
        self.heap: ManagedHeap | None = None
        self.rows: NDArray[np.intp] = np.zeros(0, np.intp)
        self.is_held = True
        self._points: list[LiveHeap] = []
        self._count = 0
        self._full_count = 0

    @property
    def may_grow(self) -> bool:
        """Whether somebody should look who makes it grow."""
        return self.heap is None or self.heap.verdict is not Verdict.STEADY

    def note(self, collections: Iterable[LiveHeap]) -> None:
        """Remember collections."""
        for one in collections:
            self._points.append(replace(one, types=()))
            self._count += 1
            self._full_count += one.is_full
        if len(self._points) > _COLLECTIONS_MAX:
            # Every second one that is not exact.
            self._points = [one for place, one in enumerate(self._points) if one.is_full or place % 2][
                -_COLLECTIONS_MAX:
            ]

    def judge(self, runtime: str, since_ns: int, now_ns: int, leak_after_s: float) -> None:
        """Make a verdict of the collections that a runtime has told, since it does."""
        collections = Collections(
            np.array([(one.at_ns - since_ns) / 1e9 for one in self._points]),
            np.array([one.live_bytes for one in self._points], np.float64),
            np.array([one.is_full for one in self._points], np.bool_),
        )
        is_read = any(one.is_reading for one in self._points)
        watched_s = (now_ns - since_ns) / 1e9
        heap = classify_managed_heap(runtime, collections, watched_s, leak_after_s, is_read=is_read)
        self.heap = replace(heap, collections=self._count, full_collections=self._full_count)

    def on_site(self, key: SiteKey, frames: Sequence[Frame], verdict: SiteVerdict) -> SiteVerdict:
        """What is to be said of a site: of one that commits the managed heap, what is known of that."""
        if self.heap is None or verdict.verdict not in _RISING or not commits_managed_heap(key, frames):
            return verdict
        if self.heap.verdict is Verdict.LEAK and not self.is_held:
            reason = f"{self.heap.reason}; no container holds it that grows"
            return replace(verdict, verdict=Verdict.LEAK, reason=reason)
        if self.heap.verdict is Verdict.LEAK:
            reason = "memory of the managed heap: sites of kind managed say who keeps it"
            return SiteVerdict(Verdict.GROWING, verdict.confidence, reason, 0.0)
        confidence = 0.0 if self.heap.verdict is Verdict.UNKNOWN else verdict.confidence
        return SiteVerdict(self.heap.verdict, confidence, self.heap.reason, 0.0)


def may_commit_heap(key: SiteKey) -> bool:
    """Whether a site is of a kind by which a collector takes memory."""
    return key.kind in (AllocationKind.COMMIT, AllocationKind.MMAP, AllocationKind.PYTHON)


def commits_managed_heap(key: SiteKey, frames: Sequence[Frame]) -> bool:
    """Whether a site takes memory for objects: that of a garbage collector, or Python's arenas."""
    if key.kind is AllocationKind.PYTHON:
        return True
    return may_commit_heap(key) and any(
        frame.module in _COLLECTORS and any(name in (frame.function or "") for name in _OF_COLLECTOR)
        for frame in frames
    )
