"""A scan for lost blocks, in a child process, which returns all its memory when it ends.

Request and reply are `ScanRequest` and `ScanReply`. The child reads the table of live blocks before it stops
the process, because that takes longer than most of the rest, and again at the end: blocks that came or went
meanwhile count as roots, with their contents. If time allows, it also reads the table before the process
continues. Then it knows which memory is outside of blocks: freed blocks point to nothing.

Memory that does not fit into the time of the stop is read while the process runs; then everything is read a
second time a little later. A pointer that moves from unread memory to memory already read escapes one
reading, but hardly two.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.kernel import bpf
from bpfleakd.kernel.abi import LIVE_BLOCK, PENDING_CALL
from bpfleakd.kernel.children.child import serve
from bpfleakd.model.scan import ScanCaveat, ScanMethod
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.memory import MemoryReader, written_parts
from bpfleakd.process.pointer_memory import PointerMemory, pointer_memory
from bpfleakd.process.process import read_process
from bpfleakd.process.stopper import Held, hold
from bpfleakd.queries.scan_reply import ScanReply, ScanRequest, reply_of
from bpfleakd.reachability.classification import classify
from bpfleakd.reachability.pointers import BlockTable, HeapRanges, PointerScan

# Long enough for a running operation to end.
_BETWEEN_READINGS_S = 0.3
# The tracing thread enforces the limit; if it fails, the kernel ends this process this much later.
_WATCHDOG_S = 2.0
# Resume the threads this much before the limit, so the limit holds as seen from outside: they continue one by
# one, and the tracing thread may first have to wait for the interpreter's lock (sys.setswitchinterval).
_IN_TIME = 0.9
_SWITCH_S = 0.0005


class _Reading(Struct):
    """The result of one reading of the memory."""

    kinds: NDArray[np.uint8]
    stopped_s: float
    whole: bool
    dismissed: list[tuple[int, int]]
    knows_heap: bool


class _Live:
    """The table of live blocks at one moment, by address."""

    def __init__(self, map_fd: int) -> None:
        batches = [
            (addresses.copy(), blocks.copy())
            for addresses, blocks in bpf.map_batches(map_fd, np.dtype("u8"), LIVE_BLOCK, 16_384)
        ]
        addresses = np.concatenate([np.empty(0, np.uint64), *(addresses for addresses, _ in batches)])
        blocks = np.concatenate([np.empty(0, LIVE_BLOCK), *(blocks for _, blocks in batches)])
        order, self.addresses = _by_address(addresses)
        self.blocks = blocks[order]

    def changed_since(self, later: _Later) -> NDArray[np.bool_]:
        """The blocks that are gone later, or replaced by others at the same address."""
        changed = np.ones(len(self.addresses), bool)
        if not len(changed):
            return changed
        # In order, so neighbours are looked up together, which are in the cache.
        places = np.minimum(np.searchsorted(self.addresses, later.addresses), len(changed) - 1)
        same = self.addresses[places] == later.addresses
        same &= self.blocks["born_ns"][places] == later.born_ns
        changed[places[same]] = False
        return changed


class _Later:
    """The blocks that exist at another moment, by address."""

    def __init__(self, map_fd: int) -> None:
        batches = [
            (addresses.copy(), blocks["size"].copy(), blocks["born_ns"].copy())
            for addresses, blocks in bpf.map_batches(map_fd, np.dtype("u8"), LIVE_BLOCK, 16_384)
        ]
        columns = zip(*batches, strict=True) if batches else ([np.empty(0, np.uint64)] for _ in range(3))
        addresses, sizes, born_ns = (np.concatenate(column) for column in columns)
        order, self.addresses = _by_address(addresses)
        self.sizes, self.born_ns = sizes[order], born_ns[order]


def _by_address(addresses: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """The order that sorts addresses, each once, and the addresses in it.

    A block that was moved within the table while it was read may occur twice.
    """
    order = np.argsort(addresses)
    ordered = addresses[order]
    new = np.ones(len(ordered), bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return order[new], ordered[new]


class _Scan:
    def __init__(self, request: ScanRequest) -> None:
        self._request = request
        self._reader = MemoryReader(request.pid)
        self._live = _Live(request.live_fd)
        self._table = BlockTable(self._live.addresses, self._live.blocks["size"].astype(np.uint64))
        self._heap = HeapRanges(request.heap)
        self._heap_bytes = 0

    def reply(self) -> ScanReply:
        began = time.monotonic()
        now_ns = time.monotonic_ns()
        readings = [self._read()]
        if not readings[0].whole:
            time.sleep(_BETWEEN_READINGS_S)
            readings.append(self._read())
        kinds = np.minimum.reduce([reading.kinds for reading in readings])
        return reply_of(
            self._request,
            self._live.addresses,
            self._live.blocks,
            kinds,
            now_ns=now_ns,
            method=self._method(readings),
            caveats=self._caveats(readings),
            stopped_s=sum(reading.stopped_s for reading in readings),
            took_s=time.monotonic() - began,
            read_bytes=self._reader.read_bytes,
            dismissed=[one for reading in readings for one in reading.dismissed],
            heap_bytes=self._heap_bytes if all(reading.knows_heap for reading in readings) else 0,
        )

    def _read(self) -> _Reading:
        scan = PointerScan(self._table, self._heap)
        if not self._request.stop:
            self._read_memory(scan, None)
            return self._collector(scan, None, 0.0, whole=False)
        with _urgent(), _held(self._request) as held:
            for thread in held.registers:
                scan.add_roots(thread.words)
            self._read_memory(scan, held)
            whole = held.is_holding
            in_use = self._in_use(held)
        return self._collector(scan, in_use, held.stopped_s, whole=whole)

    def _in_use(self, held: Held) -> _Later | None:
        """The existing blocks while the process is stopped; None if they are not known for certain."""
        if not len(self._heap) or not held.is_holding or self._is_moving_blocks(held):
            return None
        later = _Later(self._request.live_fd)
        return later if held.is_holding else None

    def _is_moving_blocks(self, held: Held) -> bool:
        """Whether a thread is in the middle of realloc: its block is then in no table."""
        value_bytes = bpf.map_info(self._request.threads_fd).value_bytes
        for thread in held.registers:
            key = struct.pack("=Q", self._request.pid << 32 | thread.tid)
            value = bpf.map_lookup(self._request.threads_fd, key, value_bytes)
            if value is not None:
                pending = np.frombuffer(value, PENDING_CALL, 1)[0]
                if pending["entry_sp"] and pending["old_known"]:
                    return True
        return False

    def _read_memory(self, scan: PointerScan, held: Held | None) -> None:
        request = self._request
        mappings = read_mappings(request.pid)
        threads = held.registers if held else ()
        for memory in pointer_memory(mappings, threads, request.allocator_paths):
            self._read_part(scan, memory)

    def _read_part(self, scan: PointerScan, memory: PointerMemory) -> None:
        parts = written_parts(self._request.pid, memory.part, shared=memory.shared)
        bounds = np.array([(part.start, part.end) for part in parts], np.uint64).reshape(-1, 2)
        self._heap_bytes += self._heap.bytes_of(bounds[:, 0], bounds[:, 1])
        for addresses, lengths, words in self._reader.read(parts):
            scan.add_memory(addresses, lengths, words, allocators=memory.allocators)

    def _collector(
        self, scan: PointerScan, in_use: _Later | None, stopped_s: float, *, whole: bool
    ) -> _Reading:
        blocks = None if in_use is None else BlockTable(in_use.addresses, in_use.sizes)
        pointers = scan.pointers(blocks)
        changed = self._live.changed_since(in_use or _Later(self._request.live_fd))
        kinds = classify(pointers, changed)
        return _Reading(kinds, stopped_s, whole, scan.dismissed, in_use is not None)

    def _method(self, readings: list[_Reading]) -> ScanMethod:
        if not self._request.stop:
            return ScanMethod.RUNNING
        return ScanMethod.STOPPED if readings[0].whole else ScanMethod.PARTLY_STOPPED

    def _caveats(self, readings: list[_Reading]) -> list[ScanCaveat]:
        caveats = []
        if not readings[0].whole:
            caveats.append(ScanCaveat.NOT_STOPPED)
        if not self._request.stop:
            caveats.append(ScanCaveat.NO_REGISTERS)
        if self._reader.unread_bytes:
            caveats.append(ScanCaveat.MEMORY_UNREAD)
        return caveats


@contextmanager
def _held(request: ScanRequest) -> Iterator[Held]:
    signal.setitimer(signal.ITIMER_REAL, request.stop_limit_s + _WATCHDOG_S)
    held = hold(
        request.pid,
        request.stop_limit_s * _IN_TIME,
        when_over=lambda: signal.setitimer(signal.ITIMER_REAL, 0),
    )
    try:
        if read_process(request.pid).id.start_ticks != request.start_ticks:
            raise errors.NoSuchProcess(f"process {request.pid} has ended, and its PID was reused")
        yield held
    finally:
        held.let_go()


@contextmanager
def _urgent() -> Iterator[None]:
    """Raise the priority: the process must not stay stopped while this one waits for a processor.

    Only while it is stopped. Does nothing without CAP_SYS_NICE, or in a control group without real-time.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        # The tracing thread inherits it.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def _main(request: Any) -> Any:
    sys.setswitchinterval(_SWITCH_S)
    return msgspec.to_builtins(_Scan(ScanRequest(**request)).reply())


if __name__ == "__main__":
    serve(_main)
