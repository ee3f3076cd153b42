"""Parses the payloads of the runtime's events.

https://github.com/dotnet/runtime/blob/main/src/coreclr/vm/ClrEtwAll.man

Later versions of an event append fields; the fields that are read are in all versions. A payload that is too
short raises struct.error or BadNettrace, which callers treat as a bad stream.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.runtimes.dotnet.nettrace import BadNettrace, Event, read_text

# Microsoft-Windows-DotNETRuntime
GC_START, GC_END, GC_HEAP_STATS = 1, 2, 4
# The kind of collection that lets the program continue.
BACKGROUND = 1
ALLOCATION_TICK = 10
BULK_TYPE, BULK_NODE = 15, 18
BULK_SURVIVING, BULK_MOVED = 21, 22

# Microsoft-Windows-DotNETRuntimeRundown
METHOD_END, IL_MAP_END, MODULE_END = 144, 150, 154

_METHOD = struct.Struct("<QQQIII")
_HEAP_STATS = struct.Struct("<10QIII")
_TICK = struct.Struct("<IIHQQ")
_MAP = struct.Struct("<QQBH")
_RANGES_HEADER_BYTES = 10
_NODE = np.dtype([("address", "<u8"), ("size_bytes", "<u8"), ("type", "<u8"), ("edges", "<u8")])
_TYPES_MAX = 100_000
_ALLOCATED_MAX_BYTES = 1 << 40
# MethodFlags
_JITTED = 8
# GCAllocationKind
_LARGE = 1


class LoadedMethod(Struct, frozen=True):
    """A method with native code, whose hot part is at `start`; `is_jitted`: not compiled ahead of time."""

    id: int
    module_id: int
    start: int
    size_bytes: int
    token: int
    namespace: str
    name: str
    is_jitted: bool


class IlMap(Struct, frozen=True):
    """The source of a method's native code in IL: pairs (native offset, IL offset), by native offset."""

    method_id: int
    pairs: tuple[tuple[int, int], ...]


class HeapStats(Struct, frozen=True):
    """The heap after a collection: the size of all generations is `heap_bytes`.

    If the collection `is_full`, at most `live_bytes` and at least `least_bytes` are alive; None: everything
    alive was found.
    """

    heap_bytes: int
    live_bytes: int
    least_bytes: int | None
    is_full: bool


class AllocationTick(Struct, frozen=True):
    """A sample: `allocated_bytes` since the previous one, the last of them an object of `type`.

    `address` is that of the object, 0 if the runtime does not state it; `size_bytes` is 0 before .NET 6.
    """

    type: str
    allocated_bytes: int
    address: int
    size_bytes: int
    is_large: bool


def method(event: Event) -> LoadedMethod:
    """MethodDCEndVerbose."""
    method_id, module_id, start, size_bytes, token, flags = _METHOD.unpack_from(event.payload)
    namespace, at = read_text(event.payload, _METHOD.size)
    name, _at = read_text(event.payload, at)
    return LoadedMethod(
        method_id, module_id, start, size_bytes, token, namespace, name, bool(flags & _JITTED)
    )


def module(event: Event) -> tuple[int, str]:
    """ModuleDCEnd: the id of a module, and the path of its file."""
    (module_id,) = struct.unpack_from("<Q", event.payload)
    return module_id, read_text(event.payload, 24)[0]


def il_map(event: Event) -> IlMap:
    """MethodDCEndILToNativeMap. Prologue, epilogue and code without IL are left out."""
    method_id, _rejit, _extent, count = _MAP.unpack_from(event.payload)
    numbers = struct.unpack_from(f"<{2 * count}I", event.payload, _MAP.size)
    pairs = zip(numbers[count:], numbers[:count], strict=True)
    return IlMap(method_id, tuple(sorted(pair for pair in pairs if pair[1] < 0x8000_0000)))


def heap_stats(event: Event, *, is_background: bool) -> HeapStats:
    """GCHeapStats: sizes and promotions of generations 0 to 2 and of large objects; later of pinned too.

    A background collection leaves out generations 0 and 1. Their figures are older: the memory of generation
    0 is now in generation 1, and that of generation 1 in the oldest, which was collected.
    """
    numbers = _HEAP_STATS.unpack_from(event.payload)
    sizes, promoted = list(numbers[0:8:2]), list(numbers[1:8:2])
    # Version 2 (.NET 5): ClrInstanceID, then the generation of pinned objects.
    if event.version >= 2 and len(event.payload) >= _HEAP_STATS.size + 18:
        pinned = struct.unpack_from("<QQ", event.payload, _HEAP_STATS.size + 2)
        sizes.append(pinned[0])
        # Runtimes do not fill in the live bytes of these.
        promoted.append(pinned[1] or pinned[0])
    heap_bytes, old_bytes = sum(sizes), sum(promoted[2:])
    # The oldest generation, and large objects, which belong to it.
    if not (promoted[2] or promoted[3]):
        return HeapStats(heap_bytes, heap_bytes, None, is_full=False)
    if not is_background:
        return HeapStats(heap_bytes, sum(promoted), None, is_full=True)
    live_bytes = old_bytes + sizes[1]
    return HeapStats(heap_bytes, live_bytes, min(live_bytes, old_bytes + promoted[0]), is_full=True)


def gc_start(event: Event) -> tuple[int, int, int]:
    """GCStart: the number of the collection, the oldest generation that it collects, and its kind."""
    count, depth, _reason, kind = struct.unpack_from("<IIII", event.payload)
    return count, depth, kind


def gc_end(event: Event) -> tuple[int, int]:
    """GCEnd: the number of the collection, and the oldest generation that it has collected."""
    count, depth = struct.unpack_from("<II", event.payload)
    return count, depth


def allocation_tick(event: Event) -> AllocationTick:
    """GCAllocationTick, from version 2 on."""
    _amount, kind, _instance, allocated_bytes, _type = _TICK.unpack_from(event.payload)
    name, at = read_text(event.payload, _TICK.size)
    address = size_bytes = 0
    if event.version >= 3:
        (address,) = struct.unpack_from("<Q", event.payload, at + 4)
    if event.version >= 4:
        (size_bytes,) = struct.unpack_from("<Q", event.payload, at + 12)
    # A larger figure is implausible.
    allocated_bytes = allocated_bytes if allocated_bytes <= _ALLOCATED_MAX_BYTES else 0
    return AllocationTick(name, allocated_bytes, address, size_bytes, kind == _LARGE)


def surviving_ranges(event: Event) -> NDArray[np.uint64]:
    """GCBulkSurvivingObjectRanges: start and size of each range of objects that survive and do not move."""
    return _ranges(event, 2)


def moved_ranges(event: Event) -> NDArray[np.uint64]:
    """GCBulkMovedObjectRanges: old start, new start and size of each range."""
    return _ranges(event, 3)


def heap_nodes(event: Event) -> NDArray[np.void]:
    """GCBulkNode: objects of the heap, each with its own size and its type."""
    (count,) = struct.unpack_from("<I", event.payload, 4)
    if count > (len(event.payload) - _RANGES_HEADER_BYTES) // _NODE.itemsize:
        raise BadNettrace(f"{count} objects in an event of {len(event.payload)} bytes")
    return np.frombuffer(event.payload, _NODE, count, _RANGES_HEADER_BYTES)


def type_names(event: Event) -> Iterator[tuple[int, str, int, tuple[int, ...]]]:
    """BulkType: id, name, element type and type parameters of each."""
    (count,) = struct.unpack_from("<I", event.payload)
    at = 6
    for _number in range(min(count, _TYPES_MAX)):
        type_id, _module, _name_id, flags, _element = struct.unpack_from("<QQIIB", event.payload, at)
        name, at = read_text(event.payload, at + 25)
        (parameters,) = struct.unpack_from("<I", event.payload, at)
        if parameters > len(event.payload):
            raise BadNettrace(f"a type of {parameters} parameters")
        yield type_id, name, flags, struct.unpack_from(f"<{parameters}Q", event.payload, at + 4)
        at += 4 + 8 * parameters


def _ranges(event: Event, columns: int) -> NDArray[np.uint64]:
    (count,) = struct.unpack_from("<I", event.payload, 4)
    if count > (len(event.payload) - _RANGES_HEADER_BYTES) // (8 * columns):
        raise BadNettrace(f"{count} ranges in an event of {len(event.payload)} bytes")
    numbers = np.frombuffer(event.payload, np.uint64, count * columns, _RANGES_HEADER_BYTES)
    return numbers.reshape(count, columns)
