"""Memory that a runtime allocates for, and that is owned by, managed objects or classes.

The runtime frees it after a collection has found its owner dead: a Buffer of Node.js, the metaspace of a
class loader. Until then it grows like a leak, whether anything refers to the owner or not. Objects that live
for a while are promoted, so only a full collection decides. Such a site leaks if

- a full collection came in the second half of the time over which it grew, and after what makes a leak: had
  it freed what was there, the first half would be flat, and no steady growth. It counts when it is some time
  ago, since threads of the runtime free such memory afterwards (V8 sweeps, a JVM purges its metaspace);
- it gained as much as counts in a managed heap: less is what a runtime keeps about its own work.

A confirmed leak stays one as long as its growth continues. Memory that native code of the program allocates
is not owned by objects, and neither is memory that it requests from a runtime (Unsafe.allocateMemory).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec import Struct

from bpfleakd.analysis.managed_code import is_runtime
from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.verdicts.managed_heap import GAINED_MIN_BYTES

# Maximum time from a collection to the frees, on a busy machine.
FREED_AFTER_NS = 10_000_000_000
_KINDS = (AllocationKind.HEAP, AllocationKind.MMAP, AllocationKind.COMMIT)
_JVM, _V8 = "JVM", "V8"
_LIBRARIES = ("libc.so", "libc-", "libstdc++.so", "libpthread", "libjli.so", "ld-", "libc.musl")
_REQUESTED = "Unsafe_"
_ADDON = ".node"


class OwnedGrowth(Struct, frozen=True):
    """The steady gain of a site, in a window of seconds since the attach."""

    start_s: float
    end_s: float
    gained_bytes: float


class OwnedMemory:
    """The sites of one process that grow by owned memory.

    `unconfirmed` are those that no collection has shown to leak yet, with the reason, by row of the table.
    """

    def __init__(self) -> None:
        self.unconfirmed: dict[int, str] = {}
        self._confirmed: set[int] = set()
        self._waiting: set[int] = set()

    def judge(
        self, sites: Iterable[tuple[int, OwnedGrowth]], last_full_s: float | None, leak_after_s: float
    ) -> None:
        """Judge all sites of this kind whose growth looks like a leak, by the last full collection."""
        confirmed = self._confirmed
        self._confirmed, self.unconfirmed = set(), {}
        for row, growth in sites:
            why = None if row in confirmed else _why_unconfirmed(growth, last_full_s, leak_after_s)
            if why is None:
                self._confirmed.add(row)
            else:
                self.unconfirmed[row] = why

    def announceable(self, found: Iterable[int]) -> list[int]:
        """The rows to announce among sites that have turned out to leak: unconfirmed ones wait."""
        new = set(found)
        told = {row for row in new if row not in self.unconfirmed} | (self._waiting & self._confirmed)
        self._waiting = (self._waiting | new) & self.unconfirmed.keys()
        return sorted(told)


def _why_unconfirmed(growth: OwnedGrowth, last_full_s: float | None, leak_after_s: float) -> str | None:
    needed_s = growth.start_s + max(leak_after_s, (growth.end_s - growth.start_s) / 2)
    if last_full_s is None or last_full_s < needed_s:
        return "it may be garbage, which only a full collection frees"
    return None if growth.gained_bytes > GAINED_MIN_BYTES else "too little to tell it from the runtime's own"


def is_owned_by_objects(runtime: str, key: SiteKey, frames: Sequence[Frame]) -> bool:
    """Whether a runtime itself allocated a site's memory, for objects or classes of a managed program."""
    if key.kind not in _KINDS or runtime not in (_JVM, _V8):
        return False
    # The native code that managed code called, without the allocator.
    native = list(takewhile(lambda frame: frame.kind is FrameKind.NATIVE, frames))[1:]
    native = [frame for frame in native if not (frame.module or "").startswith(_LIBRARIES)]
    if runtime == _JVM:
        # Native code of the class library may have called it, to define a class.
        is_own = bool(native) and native[0].module == "libjvm.so" and all(map(is_runtime, native))
        return is_own and not any((frame.function or "").startswith(_REQUESTED) for frame in native)
    if any((frame.module or "").endswith(_ADDON) for frame in native):
        return False
    # The libraries that Node.js uses belong to it.
    inner = list(takewhile(lambda frame: not is_runtime(frame), native))
    return len(inner) < len(native) and all(".so" in (frame.module or "") for frame in inner)
