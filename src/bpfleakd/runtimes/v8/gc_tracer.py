"""V8's own record of its collections: the `GCTracer` of a heap, read from outside.

It has the size of all objects after the last collection of any kind, and the sizes after the last ten
collections of the whole heap (src/heap/gc-tracer.h: `current_.end_object_size`, `recorded_mark_compacts_` and
`recorded_incremental_mark_compacts_`). The offsets of these fields differ between versions and builds.
Exported functions of V8 access the fields, and their first instructions have the offsets:

- `GCTracer::MarkCompactSpeedInBytesPerMillisecond` and `FinalIncrementalMarkCompactSpeed…` read the number of
  entries and the first one of a ring, or pass the ring on;
- `GCTracer::StopInSafepoint` stores what `Heap::SizeOfObjects` returned.

The process may have chosen the file: offsets are only accepted as long as the memory confirms them, at each
reading.
"""

from __future__ import annotations

import math
import re
import struct

from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.named_symbols import find_symbols
from bpfleakd.process.remote_memory import RemoteMemory

_RINGS = (
    "_ZNK2v88internal8GCTracer37MarkCompactSpeedInBytesPerMillisecondEv",
    "_ZNK2v88internal8GCTracer53FinalIncrementalMarkCompactSpeedInBytesPerMillisecondEv",
)
_STOP = "_ZN2v88internal8GCTracer15StopInSafepointEv"
_CODE_BYTES = 64
# mov disp32(%rdi), %r32
_LOAD = re.compile(rb"\x44?\x8b[\x87\x8f\x97\x9f\xa7\xaf\xb7\xbf](.{4})", re.DOTALL)
# add $imm32, %rdi; jmp rel32
_PASS_ON = re.compile(rb"\A(?:\xf3\x0f\x1e\xfa)?\x48\x81\xc7(.{4})\xe9", re.DOTALL)
# mov (%rdi), %rdi; call rel32; anything short; mov %rax, disp8(%r64)
_STORE = re.compile(
    rb"\x48\x8b\x3f\xe8.{4}.{0,8}?(?:[\x48\x49]\x89[\x40-\x43\x45-\x47]|\x49\x89\x44\x24)(.)", re.DOTALL
)
# A ring has room for ten pairs of bytes and milliseconds; then the place of the first, and their number.
RING_SIZE = 10
_PAIR = struct.Struct("<Qd")
_ENTRIES_BYTES = RING_SIZE * _PAIR.size
_TAIL = struct.Struct("<ii")
RING_BYTES = _ENTRIES_BYTES + _TAIL.size
_OFFSET_MAX = 1 << 14
# heap; type and state of the event, two numbers and a pointer between; when it began and ended, in ms
_HEAD = struct.Struct("<Qii16xdd")
_TYPES, _STATES = 8, 4
# Event::State during a collection: MARKING and ATOMIC. The times of its event come at its end.
_UNDER_WAY = (1, 2)
# A pointer read as a double is a number much smaller than this, but not 0.
_TIME_MIN_MS = 1e-3
_HEAP_BYTES = 6 << 10
_SIZE_MAX_BYTES = 1 << 40
_DURATION_MAX_MS = 3.6e6
# Memory that may have been returned to the system since the last collection: the young generation.
_GIVEN_BACK_MAX_BYTES = 128 << 20


class TracerLayout(Struct, frozen=True):
    """Offsets in the GCTracer, in bytes: of the two rings, and of the size after the last collection."""

    rings: tuple[int, ...]
    end_size: int


class Ring(Struct, frozen=True):
    """The last collections of the whole heap: bytes left alive, oldest first.

    `first` is the place of the oldest one, 0 until there have been ten.
    """

    first: int
    sizes_bytes: tuple[int, ...]

    def since(self, before: Ring) -> tuple[int, ...]:
        """The new entries, at most all."""
        count = len(self.sizes_bytes) - len(before.sizes_bytes) + (self.first - before.first) % RING_SIZE
        return self.sizes_bytes[-count:] if count > 0 else ()


def read_layout(image: ElfImage) -> TracerLayout | None:
    """The layout of the GCTracer of the V8 in a file; None if it is unknown. Raises BadElf."""
    symbols = find_symbols(image, [*_RINGS, _STOP])
    if len(symbols) < len(_RINGS) + 1:
        return None
    rings = [_ring_offset(image.read(symbols[name].vaddr, _CODE_BYTES)) for name in _RINGS]
    store = _STORE.search(image.read(symbols[_STOP].vaddr, _CODE_BYTES))
    end_size = store[1][0] if store else 0
    found = tuple(ring for ring in rings if ring is not None and _HEAD.size <= ring <= _OFFSET_MAX)
    if len(set(found)) < len(_RINGS) or not _HEAD.size <= end_size < min(found) or end_size % 8:
        return None
    return TracerLayout(found, end_size)


def _ring_offset(code: bytes) -> int | None:
    passed_on = _PASS_ON.search(code)
    if passed_on:
        return int.from_bytes(passed_on[1], "little")
    loaded = sorted(int.from_bytes(one, "little") for one in _LOAD.findall(code)[:2])
    if len(loaded) == 2 and loaded[1] - loaded[0] == _TAIL.size // 2:
        return loaded[0] - _ENTRIES_BYTES
    return None


class OtherObject(ValueError):
    """The object at the address does not lead back to the heap, or no longer does."""


class TracerReading(Struct, frozen=True):
    """The rings, and the bytes of all objects after the last collection: 0 during a collection."""

    rings: tuple[Ring, ...]
    end_bytes: int
    is_blank: bool
    """Nothing has been collected yet; much other memory looks like that."""


class GcTracer:
    """The GCTracer of one heap."""

    def __init__(self, memory: RemoteMemory, heap: int, address: int, layout: TracerLayout) -> None:
        self._memory = memory
        self._heap = heap
        self._address = address
        self._layout = layout

    def read(self) -> TracerReading:
        """The current figures. Raises OSError, OtherObject, or ValueError if they are inconsistent."""
        # In one piece: a read call costs much more than the bytes.
        data = self._memory.read(self._address, max(self._layout.rings) + RING_BYTES)
        heap, type_, state, start_ms, end_ms = _HEAD.unpack_from(data)
        times = (start_ms, end_ms)
        if heap != self._heap:
            raise OtherObject("not a record of collections")
        if not (0 <= type_ < _TYPES and 0 <= state < _STATES):
            raise ValueError("the last collection is invalid")
        if not all(time == 0 or (math.isfinite(time) and time >= _TIME_MIN_MS) for time in times):
            raise ValueError("the times of the last collection are invalid")
        end_bytes = int.from_bytes(data[self._layout.end_size :][:8], "little")
        if end_bytes > _SIZE_MAX_BYTES:
            raise ValueError("the heap is too large")
        rings = tuple(_ring(data[place : place + RING_BYTES]) for place in self._layout.rings)
        is_blank = not end_bytes and not any(ring.sizes_bytes for ring in rings)
        if not start_ms and not is_blank and state not in _UNDER_WAY:
            raise ValueError("a collection that never began")
        return TracerReading(rings, end_bytes, is_blank)


def _ring(data: bytes) -> Ring:
    first, count = _TAIL.unpack_from(data, _ENTRIES_BYTES)
    if not 0 <= first < RING_SIZE or not 0 <= count <= RING_SIZE or (first and count < RING_SIZE):
        raise ValueError("this is no ring")
    pairs = [_PAIR.unpack_from(data, (first + n) % RING_SIZE * _PAIR.size) for n in range(count)]
    if not all(0 < size <= _SIZE_MAX_BYTES and 0 <= ms <= _DURATION_MAX_MS for size, ms in pairs):
        raise ValueError("these are no collections")
    return Ring(first, tuple(size for size, _ms in pairs))


def find_tracer(memory: RemoteMemory, heap: int, pages_bytes: int, layout: TracerLayout) -> GcTracer | None:
    """The GCTracer of a heap with `pages_bytes` of pages.

    It is the object that the heap points to, that leads back to the heap, and that has matching figures. None
    if there are no figures yet, because the heap has not been collected. Raises OSError, or ValueError if
    there is none, or several.
    """
    found, blank = [], 0
    words = struct.unpack(f"<{_HEAP_BYTES // 8}Q", memory.read(heap, _HEAP_BYTES))
    wanted = sorted({word for word in words if word and not word % 8})
    # Few of these lead back to the heap.
    heads = zip(wanted, memory.gather(wanted, 8), strict=True)
    for address in (one for one, head in heads if int.from_bytes(head, "little") == heap):
        tracer = GcTracer(memory, heap, address, layout)
        try:
            reading = tracer.read()
        except (OSError, ValueError):
            continue
        if reading.is_blank:
            blank += 1
        elif reading.end_bytes <= pages_bytes + _GIVEN_BACK_MAX_BYTES:
            found.append(tracer)
    if len(found) > 1 or not (found or blank):
        raise ValueError("the counters of its heap are not as expected")
    return found[0] if found else None
