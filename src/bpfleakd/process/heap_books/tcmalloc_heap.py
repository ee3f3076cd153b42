"""The memory of tcmalloc (gperftools) and the free part of it: the statistics of its page heap.

The statistics are a variable without a symbol. bpfleakd finds it by the relations between its eleven words:
the committed memory is the memory obtained minus the memory returned, and the same follows from the totals of
all commits and decommits. No other memory looks like that by chance, and if two places do, neither is used.
Source: gperftools' src/page_heap.h (PageHeap::Stats), 2.6 to 2.16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.heap_books.glibc_arenas import variables
from bpfleakd.process.remote_memory import RemoteMemory

_WORDS = 11
_PAGE_BYTES = 4096
# In the order of PageHeap::Stats.
_SYSTEM, _FREE, _UNMAPPED, _COMMITTED = range(4)
_TOTAL_COMMIT, _TOTAL_DECOMMIT, _TOTAL_RESERVE = 6, 8, 10


class TcmallocHeap(Struct, frozen=True):
    """Bytes: `committed_bytes` of memory, of which `free_bytes` belong to no span in use."""

    committed_bytes: int
    free_bytes: int


def read_tcmalloc_heap(memory: RemoteMemory, mappings: Sequence[Mapping]) -> TcmallocHeap | None:
    """The page heap of the process; None if it has none, or if it cannot be identified with certainty."""
    found = []
    for start, end in variables(mappings):
        try:
            words = np.frombuffer(memory.read(start, end - start), np.uint64)
        except OSError:
            continue
        found += [words[place : place + _WORDS].tolist() for place in _places(words)]
    if len(found) != 1:
        return None
    return TcmallocHeap(committed_bytes=found[0][_COMMITTED], free_bytes=found[0][_FREE])


def _places(words: NDArray[np.uint64]) -> list[int]:
    """The places of possible statistics."""
    count = len(words) - _WORDS + 1
    if count <= 0:
        return []

    def column(number: int) -> NDArray[np.uint64]:
        return words[number : number + count]

    system, free, unmapped, committed = map(column, range(4))
    page = np.uint64(_PAGE_BYTES)
    likely = (system > 0) & (system % page == 0) & (system == column(_TOTAL_RESERVE))
    likely &= (free % page == 0) & (free <= system) & (unmapped % page == 0) & (unmapped <= system)
    likely &= (committed == system - unmapped) & (free <= committed)
    likely &= column(_TOTAL_COMMIT) - column(_TOTAL_DECOMMIT) == committed
    places: list[int] = np.flatnonzero(likely).tolist()
    return places
