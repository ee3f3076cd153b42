"""Collections of V8, by headers of pages that stand in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from bpfleakd.model.mapping import Mapping
from bpfleakd.runtimes.v8.live_heap import HEADER, PAGE_BYTES, V8LiveHeap

BASE = 64 * PAGE_BYTES
HEAP = 0x16373338
YOUNG = 0x8
SECOND = 1_000_000_000


class Pages:
    """A heap of pages: allocated bytes and flags of each. As RemoteMemory."""

    def __init__(self, pages: Sequence[tuple[int, int]]) -> None:
        self.pages = list(pages)

    def read(self, address: int, size_bytes: int) -> bytes:
        allocated, flags = self.pages[(address - BASE) // PAGE_BYTES]
        end = address + PAGE_BYTES
        return HEADER.pack(PAGE_BYTES, flags, HEAP, address + 0x1130, end, allocated)[:size_bytes]

    def mappings(self) -> list[Mapping]:
        end = BASE + len(self.pages) * PAGE_BYTES
        return [Mapping(BASE, end, 0, "00:00", 0, "", True, True, False)]


@pytest.fixture
def ticks() -> Iterator[int]:
    return iter(range(0, 1000 * SECOND, 3 * SECOND))


def test_a_collection_is_seen_by_what_it_frees(ticks: Iterator[int]) -> None:
    """Old pages only grow until a collection of the whole heap; what is left then was alive."""
    memory = Pages([(200_000, 0)] * 10 + [(0, YOUNG)] * 2)
    heap = V8LiveHeap(memory, memory.mappings)  # type: ignore[arg-type]
    assert heap.watched_since_ns is None
    assert heap.read(next(ticks)) == ()
    assert heap.watched_since_ns == 0

    memory.pages[3] = (240_000, 0)
    memory.pages[11] = (250_000, YOUNG)
    assert heap.read(next(ticks)) == ()
    memory.pages[4:8] = [(100_000, 0)] * 4
    (collection,) = heap.read(next(ticks))

    assert (collection.live_bytes, collection.collections, collection.is_full) == (1_640_000, 1, True)
    assert heap.failure is None


def test_a_trimmed_object_is_no_collection(ticks: Iterator[int]) -> None:
    """A few bytes less are no sign."""
    memory = Pages([(200_000, 0)] * 10)
    heap = V8LiveHeap(memory, memory.mappings)  # type: ignore[arg-type]
    heap.read(next(ticks))
    memory.pages[0] = (190_000, 0)

    assert heap.read(next(ticks)) == ()


def test_what_is_no_heap_says_so(ticks: Iterator[int]) -> None:
    """Pages that claim more than they hold are none."""
    memory = Pages([(PAGE_BYTES * 2, 0)] * 4)
    heap = V8LiveHeap(memory, memory.mappings)  # type: ignore[arg-type]

    assert heap.read(next(ticks)) == ()
    assert heap.failure is not None
    assert heap.watched_since_ns is None
