"""Finds the call sites whose live blocks pin freed memory, by lying in the same pages.

The free bytes of a page that is not entirely free are divided evenly between the live blocks that begin or
end in it. Pages in which all blocks are from before the attach are charged to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_PAGE_BYTES = 4096
# 48 MB for the addresses of blocks; further blocks are not charged.
_BLOCKS_MAX = 2_000_000


class PinnedPages(NamedTuple):
    """From the address `start` on: the free bytes of each page that live blocks retain."""

    start: int
    free_bytes: NDArray[np.int64]


class Pinning(NamedTuple):
    """The free bytes that the blocks of a call site (of the heap) retain, and the number of these blocks."""

    stack_id: int
    bytes: int
    blocks: int


def pinned_pages(start: int, present: NDArray[np.bool_], free: NDArray[np.uint64]) -> PinnedPages:
    """The pages from `start` on that are `present`; the free chunks (n x 2) are in order of addresses."""
    free_bytes = np.zeros(len(present), np.int64)
    pages = np.flatnonzero(present)
    if not len(free) or not len(pages):
        return PinnedPages(start, free_bytes)
    # Little of a large heap may be in memory: these are the edges of the present pages.
    is_edge = np.zeros(len(present) + 1, bool)
    is_edge[pages] = is_edge[pages + 1] = True
    numbers = np.cumsum(is_edge, dtype=np.int32)
    edges = np.flatnonzero(is_edge) * _PAGE_BYTES
    first = free[:, 0].astype(np.int64) - start
    sizes = free[:, 1].astype(np.int64)
    before = np.concatenate([[0], np.cumsum(sizes)])
    chunk = np.searchsorted(first, edges, side="right") - 1
    reached = np.where(chunk >= 0, np.minimum(edges - first[chunk], sizes[chunk]), 0)
    free_before = before[np.maximum(chunk, 0)] + reached
    in_page = free_before[numbers[pages + 1] - 1] - free_before[numbers[pages] - 1]
    free_bytes[pages] = np.where(in_page < _PAGE_BYTES, np.maximum(in_page, 0), 0)
    return PinnedPages(start, free_bytes)


def pinning_sites(
    pages: Sequence[PinnedPages], batches: Iterable[tuple[NDArray[np.uint64], NDArray[np.void]]]
) -> list[Pinning]:
    """The call sites, largest first. Batches are addresses and LIVE_BLOCK records."""
    ordered = sorted((each for each in pages if each.free_bytes.any()), key=lambda each: each.start)
    if not ordered:
        return []
    starts = np.array([each.start for each in ordered], np.int64)
    lengths = np.array([len(each.free_bytes) for each in ordered])
    offsets = np.cumsum(lengths) - lengths
    held = np.concatenate([each.free_bytes for each in ordered])

    def page_of(addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        area = np.searchsorted(starts, addresses, side="right") - 1
        page = (addresses - starts[area]) // _PAGE_BYTES
        return np.where((area >= 0) & (page < lengths[area]), offsets[area] + page, -1)

    found_pages, found_stacks, found_counts = [], [], []
    count = 0
    for addresses, blocks in batches:
        begin = addresses.astype(np.int64)
        first = page_of(begin)
        last = page_of(begin + np.maximum(blocks["size"].astype(np.int64), 1) - 1)
        # A block that begins in one page and ends in another is charged in both and counted once.
        is_counted = (first >= 0) & (held[first] > 0)
        for page, wanted, counted in (
            (first, first >= 0, is_counted),
            (last, (last >= 0) & (last != first), ~is_counted & (held[last] > 0)),
        ):
            found_pages.append(page[wanted])
            found_stacks.append(blocks["stack_id"][wanted])
            found_counts.append(counted[wanted])
        count += len(begin)
        if count > _BLOCKS_MAX:
            break
    at = np.concatenate([np.empty(0, np.int64), *found_pages])
    stacks = np.concatenate([np.empty(0, np.uint64), *found_stacks])
    are_counted = np.concatenate([np.empty(0, bool), *found_counts])
    charged = held[at] / np.maximum(np.bincount(at, minlength=len(held))[at], 1)
    sites, rows = np.unique(stacks, return_inverse=True)
    sums = np.bincount(rows, charged, minlength=len(sites))
    counts = np.bincount(rows[are_counted], minlength=len(sites))
    order = np.argsort(-sums, kind="stable")
    return [Pinning(int(sites[row]), round(float(sums[row])), int(counts[row])) for row in order if sums[row]]
