"""Collections of V8, by its own record of them, in a file that stands for the memory of a process."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfleakd.runtimes.v8.live_heap import V8LiveHeap
from tests.unit.runtimes.v8.heaps import LAYOUT, TRACER, Heap

SECOND = 1_000_000_000
MIB = 1 << 20


@pytest.fixture
def ticks() -> Iterator[int]:
    return iter(range(SECOND, 1000 * SECOND, SECOND))


def test_full_ones_and_others(tmp_path: Path, ticks: Iterator[int]) -> None:
    """What a full one leaves was alive, marked at once or step by step; what another leaves is an upper
    bound.
    """
    heap = Heap(tmp_path)
    heap.collect(3 * MIB, full=True)
    with heap.memory() as memory:
        live = V8LiveHeap(memory, heap.mappings, LAYOUT)
        assert live.watched_since_ns is None
        assert live.read(next(ticks)) == ()
        assert (live.watched_since_ns, live.failure) == (SECOND, None)

        heap.collect(4 * MIB, full=False)
        (one,) = live.read(next(ticks))
        assert (one.live_bytes, one.collections, one.is_full) == (4 * MIB, 1, False)
        assert live.read(next(ticks)) == ()

        heap.collect(2 * MIB, full=True, incremental=True)
        heap.collect(5 * MIB, full=False)
        (one,) = live.read(next(ticks))
        assert (one.live_bytes, one.collections, one.is_full) == (2 * MIB, 2, True)

        for n in range(25):
            heap.collect((6 + n) * MIB, full=True)
            (one,) = live.read(next(ticks))
            assert (one.live_bytes, one.collections, one.is_full) == ((6 + n) * MIB, 3 + n, True)


def test_a_collection_under_way_is_none_yet(tmp_path: Path, ticks: Iterator[int]) -> None:
    """Its size is 0 until it has ended."""
    heap = Heap(tmp_path)
    heap.collect(3 * MIB, full=True)
    with heap.memory() as memory:
        live = V8LiveHeap(memory, heap.mappings, LAYOUT)
        live.read(next(ticks))
        heap.write(TRACER + LAYOUT.end_size, bytes(8))
        assert live.read(next(ticks)) == ()


def test_a_reading_in_the_middle_of_a_change(tmp_path: Path, ticks: Iterator[int]) -> None:
    """The heap stays known, and the full collection that it was part of is not missed."""
    heap = Heap(tmp_path)
    heap.collect(3 * MIB, full=True)
    with heap.memory() as memory:
        live = V8LiveHeap(memory, heap.mappings, LAYOUT)
        live.read(next(ticks))
        heap.write(TRACER + 8, struct.pack("<i", 99))
        assert live.read(next(ticks)) == ()
        heap.collect(4 * MIB, full=True)
        (one,) = live.read(next(ticks))
        assert (one.live_bytes, one.is_full) == (4 * MIB, True)


def test_marking_step_by_step_has_no_time_yet(tmp_path: Path, ticks: Iterator[int]) -> None:
    """Its event has begun, and the times of it come at its end: the record is known by the rest."""
    heap = Heap(tmp_path)
    heap.collect(3 * MIB, full=True)
    heap.write(TRACER + 8, struct.pack("<ii16xdd", 2, 1, 0.0, 0.0))
    heap.write(TRACER + LAYOUT.end_size, bytes(8))
    with heap.memory() as memory:
        live = V8LiveHeap(memory, heap.mappings, LAYOUT)
        assert live.read(next(ticks)) == ()
        assert (live.watched_since_ns, live.failure) == (SECOND, None)
        heap.collect(4 * MIB, full=True, incremental=True)
        (one,) = live.read(next(ticks))
        assert (one.live_bytes, one.is_full) == (4 * MIB, True)


def test_one_that_starts(tmp_path: Path, ticks: Iterator[int]) -> None:
    """It is watched before its first collection, which is not an error."""
    heap = Heap(tmp_path)
    with heap.memory() as memory:
        live = V8LiveHeap(memory, heap.mappings, LAYOUT)
        assert live.read(next(ticks)) == ()
        assert (live.watched_since_ns, live.failure) == (SECOND, None)
        heap.collect(3 * MIB, full=True)
        (one,) = live.read(next(ticks))
        assert (one.live_bytes, one.is_full, one.collections) == (3 * MIB, True, 1)


def test_a_worker_that_was_never_collected_counts_for_nothing(tmp_path: Path, ticks: Iterator[int]) -> None:
    """Only what full collections of all its heaps have found is certain for a process."""
    first, second = Heap(tmp_path), Heap(tmp_path, base=0x80000)
    first.collect(3 * MIB, full=True)
    second.collect(2 * MIB, full=False)
    with first.memory() as memory:
        live = V8LiveHeap(memory, lambda: [*first.mappings(), *second.mappings()], LAYOUT)
        live.read(next(ticks))
        first.collect(4 * MIB, full=False)
        (one,) = live.read(next(ticks))
        assert (one.live_bytes, one.is_full) == (6 * MIB, False)
        first.collect(3 * MIB, full=True)
        (one,) = live.read(next(ticks))
        assert (one.live_bytes, one.is_full) == (3 * MIB, True)
        second.collect(1 * MIB, full=True)
        (one,) = live.read(next(ticks))
        assert (one.live_bytes, one.is_full) == (4 * MIB, True)

        # and it ends
        second.write(TRACER, bytes(8))
        first.collect(5 * MIB, full=True)
        (one,) = live.read(next(ticks))
        assert one.live_bytes == 5 * MIB


def test_what_is_no_heap_says_so(tmp_path: Path, ticks: Iterator[int]) -> None:
    """An unknown build, no pages, no record."""
    heap = Heap(tmp_path)
    with heap.memory() as memory:
        unknown = V8LiveHeap(memory, heap.mappings, None)
        empty = V8LiveHeap(memory, list, LAYOUT)
        heap.write(TRACER, bytes(8))
        strange = V8LiveHeap(memory, heap.mappings, LAYOUT)
        for one in (unknown, empty, strange):
            assert one.read(next(ticks)) == ()
            assert one.failure is not None
            assert one.watched_since_ns is None
