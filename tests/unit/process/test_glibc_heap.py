"""Arenas that a process has forged: reads are bounded, and only consistent data counts."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.heap_books.glibc_heap import read_glibc_heap
from bpfleakd.process.remote_memory import RemoteMemory

ARENAS = 6_000
# malloc_state of glibc 2.27 and later, in words: fast bins, top, bins, the bitmap, next.
WORDS, FAST, TOP, BINS, NEXT = 300, 2, 12, 14, 14 + 254 + 2
CHUNK_BYTES = 4_096


class Forged:
    """Arenas one behind the other, each with empty bins, and memory for chunks."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._raw = (ctypes.c_uint64 * (count * WORDS + 2))()
        self._chunks = (ctypes.c_uint64 * (CHUNK_BYTES // 8 + 2))()
        self.start = -(-ctypes.addressof(self._raw) // 16) * 16
        self.chunks = -(-ctypes.addressof(self._chunks) // 16) * 16
        for number in range(count):
            self.write(self.base(number), TOP, self.chunks)
            for bin_number in range(127):
                head = self.base(number) + 8 * (BINS + 2 * bin_number) - 16
                self.write(head, 2, head)
                self.write(head, 3, head)

    def base(self, number: int) -> int:
        return self.start + 8 * WORDS * number

    def write(self, address: int, word: int, value: int) -> None:
        ctypes.c_uint64.from_address(address + 8 * word).value = value

    def follow(self, number: int, following: int) -> None:
        """One arena is followed by another."""
        self.write(self.base(number), NEXT, self.base(following))

    def head(self, number: int, bin_number: int) -> int:
        return self.base(number) + 8 * (BINS + 2 * bin_number) - 16

    def mappings(self) -> list[Mapping]:
        end = self.start + 8 * WORDS * self.count
        return [
            Mapping(self.start, end, 0, "08:01", 7, "/opt/forged", True, True, False),
            Mapping(self.chunks, self.chunks + CHUNK_BYTES, 0, "00:00", 0, "", True, True, False),
        ]


class Counted(RemoteMemory):
    """Counts the bytes read."""

    def __init__(self) -> None:
        super().__init__(os.getpid())
        self.reads = 0

    def _exactly(self, address: int, size_bytes: int) -> bytes:
        self.reads += 1
        return super()._exactly(address, size_bytes)


@pytest.fixture
def memory() -> Iterator[Counted]:
    with Counted() as memory:
        yield memory


def test_an_arena_with_a_list_of_free_chunks(memory: Counted) -> None:
    """As it should be: two free chunks in a bin, two in a fast bin."""
    forged = Forged(1)
    forged.follow(0, 0)
    head, first, second, third, fourth = forged.head(0, 3), *(forged.chunks + 64 * n for n in range(4))
    forged.write(head, 2, first)
    forged.write(head, 3, second)
    for chunk, (forward, back) in {first: (second, head), second: (head, first)}.items():
        for word, value in ((1, 64 | 1), (2, forward), (3, back)):
            forged.write(chunk, word, value)
    forged.write(forged.base(0), FAST, third)
    forged.write(third, 1, 32)
    forged.write(third, 2, fourth ^ (third + 16 >> 12))
    forged.write(fourth, 1, 32)
    forged.write(fourth, 2, fourth + 16 >> 12)
    heap = read_glibc_heap(memory, forged.mappings())
    assert heap is not None
    assert (heap.arenas, heap.left_out) == (1, 0)
    found = dict(heap.free.tolist())
    assert found == {first: 64, second: 64, third: 32, fourth: 32}


@pytest.mark.parametrize(
    ("empty", "torn", "is_found"), [(2, 0, True), (2, 2, True), (1, 0, False), (2, 3, False)]
)
def test_an_arena_without_room_in_its_bins(memory: Counted, empty: int, torn: int, is_found: bool) -> None:
    """Two of 127 bins are empty, two others change just now."""
    forged = Forged(1)
    forged.follow(0, 0)
    for bin_number in range(127 - empty):
        chunk = forged.chunks + 16 * bin_number
        forged.write(chunk, 1, 32)
        forged.write(forged.head(0, bin_number), 2, chunk)
        forged.write(
            forged.head(0, bin_number), 3, forged.head(0, bin_number) if bin_number < torn else chunk
        )
    heap = read_glibc_heap(memory, forged.mappings())
    assert (heap is not None) == is_found


def test_mappings_that_were_cut_are_one(memory: Counted) -> None:
    """By madvise or mlock: a chunk reaches over the cut."""
    forged = Forged(1)
    forged.follow(0, 0)
    head, chunk = forged.head(0, 5), forged.chunks + 16
    for word, value in ((1, 2048 | 1), (2, head), (3, head)):
        forged.write(chunk, word, value)
        forged.write(head, 2 + (word == 3), chunk)
    file, whole = forged.mappings()
    cut = whole.start + 1024
    heap = read_glibc_heap(memory, [file, replace(whole, end=cut), replace(whole, start=cut)])
    assert heap is not None
    assert heap.areas.tolist() == [[whole.start, whole.end]]
    assert [chunk, 2048] in heap.free.tolist()
    assert heap.left_out == 0


def test_a_ring_of_arenas_that_leads_past_its_beginning(memory: Counted) -> None:
    """No ring, and not followed again and again."""
    forged = Forged(ARENAS)
    for number in range(ARENAS):
        forged.follow(number, max(1, (number + 1) % ARENAS))
    assert read_glibc_heap(memory, forged.mappings()) is None
    assert memory.reads < 5_000


def test_bins_and_chunks_that_lead_anywhere(memory: Counted) -> None:
    """Circles without an end, chunks without a size, and links to nowhere: nothing of it is a free chunk."""
    forged = Forged(50)
    random = np.random.default_rng(4711)
    for number in range(50):
        forged.follow(number, (number + 1) % 50)
        for bin_number in range(60):
            head, chunk = forged.head(number, bin_number), forged.chunks + 16 * int(random.integers(100))
            forged.write(head, 2, chunk)
            forged.write(head, 3, 16 * int(random.integers(1 << 40)) if bin_number % 2 else chunk)
        forged.write(forged.base(number), FAST, forged.chunks)
    for place in range(CHUNK_BYTES // 8 - 4):
        forged.write(forged.chunks, place, forged.chunks + 16 * int(random.integers(120)))
    heap = read_glibc_heap(memory, forged.mappings(), chunks_max=20_000)
    assert heap is not None
    assert len(heap.free) <= 120
    assert heap.left_out > 0
    assert memory.reads < 5_000
