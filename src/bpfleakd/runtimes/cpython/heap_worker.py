"""A reading of Python's object heap, in a child process: see heap_reading."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.kernel.children.child_series import serve_series
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.process.stopper import Held, hold
from bpfleakd.runtimes.cpython.bounds import bound_of
from bpfleakd.runtimes.cpython.containers import Container, containers_in, value_types
from bpfleakd.runtimes.cpython.heap_reading import HeapReading, HeapRequest
from bpfleakd.runtimes.cpython.large_objects import large_objects
from bpfleakd.runtimes.cpython.object_types import NO_OBJECT, TypeNames
from bpfleakd.runtimes.cpython.pools import Pools, find_pools, pool_bytes, read_pools

_CONTAINERS_MAX = 4_096
_TYPES_MAX = 10_000
# Leaves time for the threads to continue one by one.
_IN_TIME = 0.9


class _Heap:
    """The objects found in the pools of one process."""

    def __init__(self, request: HeapRequest, memory: RemoteMemory) -> None:
        self._request = request
        self._layout = request.target.layout
        self._memory = memory
        self._pid = request.target.pid
        self.names = TypeNames(self._pid, memory, self._layout, request.target.types)
        self.counts: Counter[str] = Counter()
        self.type_bytes: Counter[str] = Counter()
        self.containers: list[Container] = []
        self.live_bytes = 0

    def read(self) -> float:
        """Read everything; returns how long the process was stopped."""
        size_bytes = pool_bytes(self._layout.version)
        held = _held(self._pid, self._request.stop_s)
        try:
            found = find_pools(self._pid, read_mappings(self._pid), size_bytes)
            kept = list(self._held_pools(held, found, size_bytes)) if held else []
            is_whole = held is not None and held.is_holding
        finally:
            if held is not None:
                held.let_go()
        if is_whole:
            for pools in kept:
                self._note(pools)
        else:
            kept.clear()
            self._take(found, size_bytes, twice=self._request.stop_s > 0 or self._request.twice)
        return held.stopped_s if held else 0.0

    def _held_pools(
        self, held: Held, found: dict[int, NDArray[np.uint64]], size_bytes: int
    ) -> Iterator[Pools]:
        """All pools, while the process is stopped."""
        for size_class, starts in found.items():
            for pools in read_pools(self._pid, size_class, starts, size_bytes):
                if not held.is_holding:
                    return
                yield pools.copied()

    def _take(self, found: dict[int, NDArray[np.uint64]], size_bytes: int, *, twice: bool) -> None:
        for size_class, starts in found.items():
            for pools in read_pools(self._pid, size_class, starts, size_bytes):
                self._note(self._again(pools, size_class, size_bytes) if twice else pools)

    def _again(self, pools: Pools, size_class: int, size_bytes: int) -> Pools:
        """The part of these pools that is found a second time."""
        pools = pools.copied()
        is_live = np.zeros_like(pools.is_live)
        for later in read_pools(self._pid, size_class, pools.starts, size_bytes):
            _starts, rows, others = np.intersect1d(
                pools.starts, later.starts, assume_unique=True, return_indices=True
            )
            is_live[rows] = (
                pools.is_live[rows] & later.is_live[others] & later.same_heads(pools, others, rows)
            )
        return replace(pools, is_live=is_live)

    def _note(self, pools: Pools) -> None:
        objects = self.names.objects_in(pools)
        self.live_bytes += pools.live_bytes
        for address, count in objects.counts():
            name = (self.names.name_of(address) or NO_OBJECT) if address else NO_OBJECT
            self.counts[name] += count
            self.type_bytes[name] += count * pools.block_bytes
        self.containers += containers_in(objects, self.names)
        if len(self.containers) > 4 * _CONTAINERS_MAX:
            self.containers = self.largest_containers()

    def note_large(self) -> None:
        """Count objects outside of pools."""
        for name, size_bytes in large_objects(self._pid, self._memory, self._layout, self.names):
            self.counts[name] += 1
            self.type_bytes[name] += size_bytes

    def largest_containers(self) -> list[Container]:
        """The containers with most values, and the watched ones."""
        watched = set(self._request.watched)
        kept = nlargest(_CONTAINERS_MAX, self.containers, key=attrgetter("size"))
        known = {one.address for one in kept}
        return kept + [one for one in self.containers if one.address in watched - known]


def _held(pid: int, limit_s: float) -> Held | None:
    """Stop the process; None if it must not be stopped, does not stop in time, or has another tracer."""
    if not limit_s:
        return None
    try:
        return hold(pid, limit_s * _IN_TIME)
    except errors.TargetRefused:
        return None


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a HeapRequest with a HeapReading."""
    wanted = msgspec.convert(request, HeapRequest)
    try:
        memory = RemoteMemory(wanted.target.pid)
    except OSError as error:
        raise errors.NoSuchProcess(f"process {wanted.target.pid} has ended") from error
    with memory:
        heap = _Heap(wanted, memory)
        stopped_s = heap.read()
        if wanted.large:
            heap.note_large()
        containers = heap.largest_containers()
        layout, watched = wanted.target.layout, set(wanted.watched)
        chosen = [one for one in containers if one.address in watched]
        values = {one.address: tuple(value_types(memory, layout, heap.names, one)) for one in chosen}
        bounds = ((one.address, bound_of(memory, layout, heap.names, one)) for one in chosen)
        known_bounds = {address: bound for address, bound in bounds if bound is not None}
    counts = tuple((name, size, heap.counts[name]) for name, size in heap.type_bytes.most_common(_TYPES_MAX))
    # The processor time of this fork, whatever else the processor does.
    took_s = time.process_time()
    reading = HeapReading(
        live_bytes=heap.live_bytes,
        counts=counts,
        containers=tuple(containers),
        value_types=values,
        bounds=known_bounds,
        stopped_s=stopped_s,
        took_s=took_s,
    )
    reply: dict[str, Any] = msgspec.to_builtins(reading)
    return reply


if __name__ == "__main__":
    serve_series(main)
