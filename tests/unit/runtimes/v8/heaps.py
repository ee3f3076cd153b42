"""A heap of V8 in a file that stands for the memory of a process: its pages, its record of collections."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.v8.gc_tracer import RING_SIZE, TracerLayout
from bpfleakd.runtimes.v8.heap_pages import HEADER, PAGE_BYTES

PID = 1
HEAP, TRACER = 0x10000, 0x14000
LAYOUT = TracerLayout((0xF90, 0xEE8), 0x40)
_PAGES_AT = 16 * PAGE_BYTES


class Heap:
    """A heap of `pages` pages, not collected yet. A second one in the same file has another `base`."""

    def __init__(self, proc: Path, pages: int = 20, base: int = 0) -> None:
        self.proc, self._base = proc, base
        self._count = [0, 0]
        self._pages = [_PAGES_AT + 16 * base * PAGE_BYTES + place * PAGE_BYTES for place in range(pages)]
        (proc / str(PID)).mkdir(exist_ok=True)
        self._path = proc / str(PID) / "mem"
        self._path.touch()
        # Two that it points to lead back to it; one of these is the record.
        self.write(HEAP, bytes(0x2000))
        self.write(HEAP + 0x210, struct.pack("<Q", TRACER + base + 0x2000))
        self.write(HEAP + 0x8F8, struct.pack("<Q", TRACER + base))
        self.write(TRACER, bytes(0x4000))
        self.write(TRACER, struct.pack("<Q", HEAP + base))
        self.write(TRACER + 0x2000, struct.pack("<Qi", HEAP + base, 99))
        for page in self._pages:
            header = HEADER.pack(PAGE_BYTES, 0, HEAP + base, page + 0x110, page + PAGE_BYTES, 0)
            self._write(page, header)

    def write(self, address: int, data: bytes) -> None:
        """Write to an address of the heap or its record."""
        self._write(address + self._base, data)

    def collect(self, live_bytes: int, *, full: bool, incremental: bool = False) -> None:
        """Collect it, as V8 notes that."""
        self.write(TRACER + 8, struct.pack("<ii16xdd", int(full), 3, 1000.0, 1001.5))
        self.write(TRACER + LAYOUT.end_size, struct.pack("<Q", live_bytes))
        if not full:
            return
        ring, count = LAYOUT.rings[incremental], self._count[incremental]
        self.write(TRACER + ring + 16 * (count % RING_SIZE), struct.pack("<Qd", live_bytes, 1.5))
        count = self._count[incremental] = count + 1
        first = count % RING_SIZE if count > RING_SIZE else 0
        self.write(TRACER + ring + 160, struct.pack("<ii", first, min(count, RING_SIZE)))

    def mappings(self) -> Sequence[Mapping]:
        """Its pages."""
        end = self._pages[-1] + PAGE_BYTES
        return [Mapping(self._pages[0], end, 0, "00:00", 0, "", True, True, False)]

    def memory(self) -> RemoteMemory:
        """The memory of the process."""
        return RemoteMemory(PID, self.proc)

    def _write(self, address: int, data: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, data, address)
        finally:
            os.close(descriptor)
