"""Memory outside of a managed heap that a collection may free: objects or classes of the heap may own it.

It is freed after a collection has found its owner dead: a Buffer of Node.js, zlib's part of a Deflater, the
metaspace of a class loader. Until then it grows like a leak, whether anything refers to the owner or not. The
allocating code says who may own it (`Owner`), and so what proves a leak:

- What the runtime or its class library allocated has an owner for certain. An owner that lives for a while is
  promoted, so only a full collection decides. Where objects are promoted late (a JVM), more collections of
  young generations than an object survives there are as good, if they left what the site had gained in a
  quarter of the time: a dropped owner was still young.
- What native code of the program allocated, called by managed code, may have an owner: any collection
  decides. The same applies to memory that the program itself requests (sun.misc.Unsafe,
  Marshal.AllocHGlobal).
- Other native memory has no owner.

The collection has to come in the second half of the time over which the site grew, and after what makes a
leak: had it freed what was there, the first half would be flat, and no steady growth. It counts when it is
some time ago, since threads of the runtime free such memory afterwards (V8 sweeps, a JVM purges its metaspace
and runs cleaners).

Of a language whose collections bpfleakd does not see, large blocks may be pages of its heap, which grows
until a collection has freed as much as comes. So they must grow for longer than other memory.

What the runtime allocates for itself leaks only if it gained as much as counts in a managed heap: less is
what it keeps about its own work. A confirmed leak stays one as long as its growth continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import takewhile

from msgspec import Struct

from bpfleakd.analysis.managed_code import caller_of_class_library, is_addon, is_managed, is_runtime
from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.verdicts.managed_heap import GAINED_MIN_BYTES

# Maximum time from a collection to the frees, on a busy machine.
FREED_AFTER_NS = 10_000_000_000
_KINDS = (AllocationKind.HEAP, AllocationKind.MMAP, AllocationKind.COMMIT)
_DOTNET, _JVM, _V8 = ".NET", "JVM", "V8"
_LIBRARIES = ("libc.so", "libc-", "libstdc++.so", "libpthread", "libjli.so", "ld-", "libc.musl")
# By these a program requests memory that no object owns.
_REQUESTED = "Unsafe_"
_REQUESTING = (
    *("jdk.internal.misc.Unsafe.", "sun.misc.Unsafe."),
    *("System.Runtime.InteropServices.Marshal.", "System.Runtime.InteropServices.NativeMemory."),
)
# An object that survives more collections than this is promoted: by at most 15 with HotSpot
# (MaxTenuringThreshold). Others promote after one or two.
_SURVIVED_MAX = {_JVM: 15}
# So large blocks may be pages of a heap, and must grow so many times as long as others.
_PAGE_BYTES, _PAGES = 16 << 10, 3.0
# What a site gained in this part of its growth must have survived as many.
_SURVIVES_FROM = 0.25


class Owner(Enum):
    """Who decides when memory outside of the heap is freed, as far as its allocation tells."""

    RUNTIME = "the runtime, for objects or classes"
    LIBRARY = "an object of the class library"
    PROGRAM = "an object of the program, or nobody"


class OwnedGrowth(Struct, frozen=True):
    """The steady gain of a site, in a window of seconds since the attach."""

    start_s: float
    end_s: float
    gained_bytes: float
    gained_count: float = 0.0


class Looks(Struct, frozen=True):
    """What collections of a heap have looked at so far, in seconds since the attach.

    `full_s` is the time whose objects the last full collection has seen, `any_s` that of the last collection,
    None without one. `counts` are times and the number of collections until then, oldest first.
    """

    full_s: float | None = None
    any_s: float | None = None
    counts: tuple[tuple[float, int], ...] = ()

    def between(self, start_s: float, end_s: float) -> int:
        """The number of collections in this time."""
        counts = [count for at_s, count in self.counts if start_s <= at_s <= end_s]
        return counts[-1] - counts[0] if counts else 0


class OwnedMemory:
    """The sites of one process that grow by memory that may be owned.

    `unconfirmed` are those that no collection has shown to leak yet, with the reason, by row of the table.
    """

    def __init__(self) -> None:
        self.unconfirmed: dict[int, str] = {}
        self._confirmed: set[int] = set()
        self._waiting: set[int] = set()

    def judge(self, sites: Iterable[tuple[int, str | None]]) -> None:
        """Judge all sites of this kind whose growth looks like a leak.

        Each comes with the reason why nothing has confirmed it yet, None if it leaks.
        """
        confirmed = self._confirmed
        self._confirmed, self.unconfirmed = set(), {}
        for row, why in sites:
            if why is None or row in confirmed:
                self._confirmed.add(row)
            else:
                self.unconfirmed[row] = why

    def announceable(self, found: Iterable[int]) -> list[int]:
        """The rows to announce among sites that have turned out to leak: unconfirmed ones wait."""
        new = set(found)
        told = {row for row in new if row not in self.unconfirmed} | (self._waiting & self._confirmed)
        self._waiting = (self._waiting | new) & self.unconfirmed.keys()
        return sorted(told)


def why_unconfirmed(
    owner: Owner, growth: OwnedGrowth, looks: Looks, leak_after_s: float, runtime: str
) -> str | None:
    """Why memory of this owner may not leak although it grows like a leak; None: it leaks."""
    survived_max = _SURVIVED_MAX.get(runtime)
    span_s = growth.end_s - growth.start_s
    needed_s = growth.start_s + max(leak_after_s, span_s / 2)
    if owner is Owner.PROGRAM:
        if looks.any_s is None or looks.any_s < needed_s:
            return "it may be garbage, and no collection has come since"
        return None
    # What was there a while after the beginning has then survived all of them.
    since_s = growth.start_s + max(leak_after_s, span_s * _SURVIVES_FROM)
    is_survivor = survived_max is not None and looks.between(since_s, growth.end_s) > survived_max
    if not is_survivor and (looks.full_s is None or looks.full_s < needed_s):
        return "it may be garbage, which only a full collection frees"
    if owner is Owner.RUNTIME and growth.gained_bytes <= GAINED_MIN_BYTES:
        return "too little to tell it from the runtime's own"
    return None


def why_unconfirmed_pages(growth: OwnedGrowth, leak_after_s: float) -> str | None:
    """Why blocks of a language whose collections are not seen may not leak although they grow like a leak.

    None: they leak.
    """
    are_pages = growth.gained_bytes >= _PAGE_BYTES * max(growth.gained_count, 1.0)
    if not are_pages or growth.end_s - growth.start_s >= _PAGES * leak_after_s:
        return None
    return "it may be a heap that grows until its next collection, which bpfleakd does not see"


def owner_of(runtime: str, key: SiteKey, frames: Sequence[Frame]) -> Owner | None:
    """Who may own a site's memory; None if nothing of the managed heap can."""
    if key.kind not in _KINDS or runtime not in (_DOTNET, _JVM, _V8):
        return None
    native = native_callers(frames)
    if _is_runtimes(runtime, native):
        return Owner.RUNTIME
    managed = [frame for frame in frames if is_managed(frame) or frame.kind is FrameKind.INTERPRETED]
    if not managed:
        return None
    of_library = list(takewhile(is_runtime, managed))
    requests = [place for place, frame in enumerate(of_library) if _is_request(frame)]
    if requests:
        # The class library requests memory for its own objects in the same way as a program does.
        return Owner.LIBRARY if requests[-1] + 1 < len(of_library) else Owner.PROGRAM
    return Owner.LIBRARY if caller_of_class_library(frames) is not None else Owner.PROGRAM


def native_callers(frames: Sequence[Frame]) -> list[Frame]:
    """The native code that managed code called, without the allocator and the C library."""
    native = list(takewhile(lambda frame: frame.kind is FrameKind.NATIVE, frames))[1:]
    return [frame for frame in native if not (frame.module or "").startswith(_LIBRARIES)]


def _is_request(method: Frame) -> bool:
    return (method.function or "").startswith(_REQUESTING)


def _is_runtimes(runtime: str, native: Sequence[Frame]) -> bool:
    if runtime == _JVM:
        # Native code of the class library may have called it, to define a class.
        is_own = bool(native) and native[0].module == "libjvm.so" and all(map(is_runtime, native))
        return is_own and not any((frame.function or "").startswith(_REQUESTED) for frame in native)
    if runtime != _V8 or any(map(is_addon, native)):
        return False
    # The libraries that Node.js uses belong to it.
    inner = list(takewhile(lambda frame: not is_runtime(frame), native))
    return len(inner) < len(native) and all(".so" in (frame.module or "") for frame in inner)
