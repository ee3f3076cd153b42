"""The statistics of tcmalloc's page heap, found by their shape, in this process' memory."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.heap_books.tcmalloc_heap import TcmallocHeap, read_tcmalloc_heap
from bpfleakd.process.remote_memory import RemoteMemory

MIB = 1 << 20
# System, free, unmapped, committed; scavenges; then number and bytes of commits, decommits, reserves.
REAL = [100 * MIB, 30 * MIB, 20 * MIB, 80 * MIB, 7, 105, 120 * MIB, 9, 40 * MIB, 100, 100 * MIB]
EXPECTED = TcmallocHeap(committed_bytes=80 * MIB, free_bytes=30 * MIB)


def found_in(words: np.ndarray) -> TcmallocHeap | None:
    """The result for a library with these variables."""
    area = mmap.mmap(-1, -(-words.nbytes // 4096) * 4096)
    view = np.frombuffer(area, np.uint64)
    view[: len(words)] = words
    start = view.ctypes.data
    mapping = Mapping(start, start + len(area), 0, "08:01", 23, "/usr/lib/x.so", True, True, False)
    with RemoteMemory(os.getpid()) as memory:
        found = read_tcmalloc_heap(memory, [mapping])
    del view
    return found


def placed(*places: int, figures: list[int] = REAL) -> np.ndarray:
    words = np.random.default_rng(1).integers(0, 1 << 62, 5_000).astype(np.uint64)
    words[2_000:4_000] = 0
    for place in places:
        words[place : place + len(figures)] = figures
    return words


@pytest.mark.parametrize("place", [0, 1_234, 3_000, 4_989])
def test_statistics_among_other_variables(place):
    """Wherever they are."""
    assert found_in(placed(place)) == EXPECTED


@pytest.mark.parametrize("number", [0, 1, 2, 3, 6, 8, 10])
def test_figures_that_do_not_agree_are_none(number):
    """Each of the words that count."""
    figures = [*REAL]
    figures[number] += 1
    assert found_in(placed(1_234, figures=figures)) is None


def test_two_places_are_none():
    """The right one is unknown; the same if all is zero."""
    assert found_in(placed(100, 3_000)) is None
    assert found_in(placed()) is None
    assert found_in(np.zeros(5, np.uint64)) is None
