"""Freed memory that an allocator keeps: the resident part of it, and the part that it could return.

Only whole pages can be returned: one live block retains the free bytes around it, which is called
fragmentation.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

_PAGE_BYTES = 4096
# The size and links of a free chunk remain.
_HEADER_BYTES = 32


class FreeMemory(Struct, frozen=True):
    """Free bytes in memory or swapped out; `whole_pages_bytes` are in pages without anything else."""

    resident_bytes: int
    whole_pages_bytes: int

    @property
    def pinned_bytes(self) -> int:
        """Free bytes in pages with live blocks."""
        return self.resident_bytes - self.whole_pages_bytes


def free_memory(start: int, present: NDArray[np.bool_], free: NDArray[np.uint64]) -> FreeMemory:
    """The free chunks (n x 2: address and bytes, none overlaps) of the pages from `start` on."""
    if not len(free) or not len(present):
        return FreeMemory(0, 0)
    end = start + _PAGE_BYTES * len(present)
    first = np.clip(free[:, 0].astype(np.int64), start, end) - start
    last = np.clip((free[:, 0] + free[:, 1]).astype(np.int64), start, end) - start
    # The bytes of present pages before each place.
    before = np.concatenate([[0], np.cumsum(present, dtype=np.int64)]) * _PAGE_BYTES
    there = np.concatenate([present, [False]])

    def present_before(place: NDArray[np.int64]) -> NDArray[np.int64]:
        pages, rest = np.divmod(place, _PAGE_BYTES)
        counted: NDArray[np.int64] = before[pages] + rest * there[pages]
        return counted

    resident = present_before(last) - present_before(first)
    whole_first = -(-np.minimum(first + _HEADER_BYTES, last) // _PAGE_BYTES)
    whole_last = np.maximum(last // _PAGE_BYTES, whole_first)
    return FreeMemory(int(resident.sum()), int((before[whole_last] - before[whole_first]).sum()))
