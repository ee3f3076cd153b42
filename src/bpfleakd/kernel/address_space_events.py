"""Changes of address spaces, as reported by the BPF programs (bpf/space.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from msgspec import Struct

from bpfleakd.kernel.abi import SPACE_EVENT
from bpfleakd.kernel.ring import RingReader

_LAYOUT = struct.Struct("=QQ6QqqIIIIII")
assert _LAYOUT.size == SPACE_EVENT.itemsize


class Syscall(IntEnum):
    """The reported calls, by their x86-64 numbers."""

    MMAP = 9
    MPROTECT = 10
    MUNMAP = 11
    BRK = 12
    MREMAP = 25
    MADVISE = 28


class AddressSpaceEvent(Struct, frozen=True):
    """One call. munmap and mremap are reported `at_entry` too; `result` is negative for a failure.

    The second of the `arguments` of brk is the program break before the call, 0 if it is unknown.

    `stack_id` 0: no stack was recorded, since the call was made `inside_allocator` or removes memory.
    `heap_peak_bytes` is the peak of live heap bytes since the previous event. `position` grows from report to
    report, and does not change when a report is read again.
    """

    time_ns: int
    stack_id: int
    arguments: tuple[int, ...]
    result: int
    heap_peak_bytes: int
    pid: int
    tid: int
    syscall: int
    at_entry: bool
    inside_allocator: bool
    position: int = 0


def read_space_events(ring: RingReader) -> Iterator[AddressSpaceEvent]:
    """Yield the current events, in the order of the programs."""
    for position, record in ring.records():
        time_ns, stack_id, *arguments, result, peak, pid, tid, syscall, phase, inside, _ = (
            _LAYOUT.unpack_from(record)
        )
        yield AddressSpaceEvent(
            time_ns,
            stack_id,
            tuple(arguments),
            result,
            peak,
            pid,
            tid,
            syscall,
            phase == 0,
            bool(inside),
            position,
        )
