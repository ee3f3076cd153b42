"""Finds words of a process' memory that point to its outstanding blocks.

Rules:
  - A word points to the block that has its address: to its start, or into its interior. An empty block is one
    byte long. The end of a block is not part of it. (memcheck, LeakSanitizer)
  - Only aligned words count. (both)
  - A word inside a block is a pointer of that block; any other word is a root: memory outside of known blocks
    may be a block from before the attach, a mapping, a stack, a variable.
  - A block's pointers to itself do not count.
  - In memory with an allocator's own data, a word that can be glibc's pointer to the free chunk behind a
    block does not point to the block: a chunk begins with the last word of the block before it.
  - In heap memory of which every block is known (`HeapRanges`), memory outside of blocks is free or the
    allocator's. Words there are not roots if no block was allocated there meanwhile. The program may use the
    bytes that glibc adds to a block (malloc_usable_size): words there are roots.

Memory comes in pieces and is not stored. A pointer takes twelve bytes, and none if the block that it points
to is known to be reachable already.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.reachability.block_graph import Links, reachable_by

# 17 MB of words that may be pointers, and three times as much during the search.
_WORDS_MAX = 1 << 20
# 96 MB of links, before irrelevant ones are dropped.
_LINKS_MAX = 8 << 20
# Offsets are stored in 32 bits.
_OFFSET_MAX = (1 << 32) - 1

# glibc malloc.c: a chunk is the block, the word with its size, and padding to a multiple of 16.
_CHUNK_WORD_BYTES = np.uint64(8)
_CHUNK_ALIGNMENT = np.uint64(16)
_CHUNK_MIN_BYTES = np.uint64(32)

# A block with a separate mapping begins here in its first page, and extends to the end of the last one.
_MAPPED_OFFSET = np.uint64(16)
_MAPPED_MIN_BYTES = np.uint64(64 << 10)
_PAGE_MASK = np.uint64(4095)
# 100 MB of words that may turn out to be roots or not. Further ones count as roots.
_UNSETTLED_MAX = 4 << 20

# Blocks this far apart are in different parts of the heap: addresses between them do not point to blocks.
_GAP_BYTES = 1 << 30
_ISLANDS_MAX = 4

Addresses = NDArray[np.uint64]


class BlockTable:
    """Blocks by address: `starts` (sorted, none twice) and `sizes` in bytes."""

    def __init__(self, starts: Addresses, sizes: NDArray[np.uint64]) -> None:
        self.starts = starts
        self.sizes = sizes
        self._ends = starts + np.maximum(sizes, np.uint64(1))

    def __len__(self) -> int:
        return len(self.starts)

    def find(self, addresses: Addresses) -> NDArray[np.int64]:
        """The number of the block that each address is in; -1 for none."""
        if not len(self.starts):
            return np.full(len(addresses), -1, np.int64)
        # In order, so neighbours are looked up together: ten times as fast in large tables. Stable, because
        # that is fast for sorted input, which places in memory are.
        order = np.argsort(addresses, kind="stable")
        found = np.empty(len(addresses), np.int64)
        found[order] = np.searchsorted(self.starts, addresses[order], side="right") - 1
        # For addresses before the first block, the index refers to the last block, which does not contain
        # them.
        found[addresses >= self._ends[found]] = -1
        found[addresses < self.starts[0]] = -1
        return found

    def is_usable(self, addresses: Addresses) -> NDArray[np.bool_]:
        """Whether addresses are in a block or in glibc's padding of one."""
        if not len(self.starts):
            return np.zeros(len(addresses), bool)
        before = np.searchsorted(self.starts, addresses, side="right") - 1
        starts, sizes = self.starts[before], self.sizes[before]
        ends = starts + _chunk_bytes(sizes) - _CHUNK_WORD_BYTES
        has_pages = ((starts & _PAGE_MASK) == _MAPPED_OFFSET) | (sizes >= _MAPPED_MIN_BYTES)
        ends[has_pages] = (ends[has_pages] + _PAGE_MASK) & ~_PAGE_MASK
        return (addresses < ends) & (before >= 0)

    def islands(self) -> list[tuple[int, int]]:
        """The address ranges of the blocks: a few ranges with large gaps between."""
        if not len(self.starts):
            return []
        gaps = self.starts[1:] - self.starts[:-1]
        cuts = np.flatnonzero(gaps > _GAP_BYTES)
        if len(cuts) >= _ISLANDS_MAX:
            largest = np.argsort(gaps[cuts], kind="stable")[len(cuts) - _ISLANDS_MAX + 1 :]
            cuts = np.sort(cuts[largest])
        firsts = [0, *(cuts + 1).tolist()]
        lasts = [*cuts.tolist(), len(self.starts) - 1]
        return [(int(self.starts[a]), int(self._ends[b])) for a, b in zip(firsts, lasts, strict=True)]


class HeapRanges:
    """Heap memory of which every block is known: `ranges` of addresses, sorted, without overlaps."""

    def __init__(self, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self._starts = np.array([start for start, _end in ranges], np.uint64)
        self._ends = np.array([end for _start, end in ranges], np.uint64)

    def __len__(self) -> int:
        return len(self._starts)

    def bytes_of(self, starts: Addresses, ends: Addresses) -> int:
        """The size of the part of these ranges in it."""
        return int((self._below(ends) - self._below(starts)).sum())

    def _below(self, addresses: Addresses) -> NDArray[np.uint64]:
        """The number of its bytes below each address."""
        if not len(self):
            return np.zeros(len(addresses), np.uint64)
        lengths = self._ends - self._starts
        before = np.cumsum(lengths) - lengths
        place = np.maximum(np.searchsorted(self._starts, addresses, side="right") - 1, 0)
        inside = np.clip(addresses, self._starts[place], self._ends[place]) - self._starts[place]
        places: NDArray[np.uint64] = before[place] + inside
        return places

    def find(self, addresses: Addresses) -> NDArray[np.intp]:
        """The number of the range that each address is in; -1 for none."""
        found = np.searchsorted(self._starts, addresses, side="right") - 1
        found[(found >= 0) & (addresses >= self._ends[found])] = -1
        return found


class Pointers(Struct, frozen=True, eq=False):
    """The result: the blocks that roots point to, and the links between blocks.

    `root_starts` and `root_interiors` are a boolean for each block. Some links to blocks in `reachable` were
    dropped: these blocks are reached from roots, by pointers to starts alone.
    """

    root_starts: NDArray[np.bool_]
    root_interiors: NDArray[np.bool_]
    links: Links
    reachable: NDArray[np.bool_]


class PointerScan:
    """Processes memory, in any order, each piece once.

    `heap`: glibc's memory of which every block is known.
    """

    def __init__(self, blocks: BlockTable, heap: HeapRanges | None = None) -> None:
        self._blocks = blocks
        self._heap = heap or HeapRanges()
        self._unsettled: list[tuple[Addresses, NDArray[np.int64], Addresses]] = []
        self._unsettled_count = 0
        # The extent of words that are not roots, from the first to the last, for each range of the heap.
        self.dismissed: list[tuple[int, int]] = []
        self._islands = [(np.uint64(low), np.uint64(high - low)) for low, high in blocks.islands()]
        self._words: list[tuple[Addresses, Addresses, NDArray[np.bool_]]] = []
        self._words_count = 0
        self._root_starts = np.zeros(len(blocks), bool)
        self._root_interiors = np.zeros(len(blocks), bool)
        self._links: list[Links] = []
        self._links_count = 0
        self._links_max = _LINKS_MAX
        self._reachable = np.zeros(len(blocks), bool)

    def add_roots(self, words: Addresses) -> None:
        """Add words outside of memory: registers."""
        words = words[self._may_point(words)]
        targets = self._blocks.find(words)
        self._root_words(targets[targets >= 0], words[targets >= 0])

    def add_memory(
        self, addresses: Addresses, lengths: NDArray[np.int64], words: Addresses, *, allocators: bool
    ) -> None:
        """Add pieces of memory: piece k is `lengths[k]` words from the aligned `addresses[k]` on.

        `allocators`: words outside of blocks may be an allocator's own.
        """
        places = self._may_point(words)
        if not len(places):
            return
        ends = np.cumsum(lengths)
        piece = np.searchsorted(ends, places, side="right")
        into = places - (ends - lengths)[piece]
        of_words = addresses[piece] + into.astype(np.uint64) * np.uint64(8)
        self._words.append((of_words, words[places], np.full(len(places), allocators)))
        self._words_count += len(places)
        if self._words_count > _WORDS_MAX:
            self._look_up()

    def pointers(self, in_use: BlockTable | None = None) -> Pointers:
        """The result.

        `in_use` are the blocks that existed when the heap was read; None if unknown: then all words outside
        of blocks are roots.
        """
        self._look_up()
        self._settle(in_use)
        links = Links.joined(self._links)
        return Pointers(self._root_starts, self._root_interiors, links, self._reachable)

    def _may_point(self, words: Addresses) -> NDArray[np.intp]:
        """The positions of words between the first and the last block of a part of the heap."""
        if not self._islands:
            return np.empty(0, np.intp)
        marks = None
        for low, length in self._islands:
            # Unsigned, so one comparison checks both ends.
            inside = (words - low) < length
            marks = inside if marks is None else np.logical_or(marks, inside, out=marks)
        assert marks is not None
        return np.flatnonzero(marks)

    def _look_up(self) -> None:
        if not self._words:
            return
        places, words, allocators = (np.concatenate(column) for column in zip(*self._words, strict=True))
        self._words, self._words_count = [], 0
        targets = self._blocks.find(words)
        known = np.flatnonzero(targets >= 0)
        places, words, allocators, targets = places[known], words[known], allocators[known], targets[known]
        sources = self._blocks.find(places)
        is_root = sources < 0
        is_pointer = is_root & ~(allocators & self._is_chunk_behind(targets, words))
        is_pointer &= ~self._put_off(is_pointer, places, targets, words)
        self._root_words(targets[is_pointer], words[is_pointer])
        keep = ~is_root & (sources != targets) & ~self._reachable[targets]
        sources, targets, words = sources[keep], targets[keep], words[keep]
        offsets = np.minimum(words - self._blocks.starts[targets], np.uint64(_OFFSET_MAX))
        links = Links(sources.astype(np.uint32), targets.astype(np.uint32), offsets.astype(np.uint32))
        self._links.append(links)
        self._links_count += len(links)
        if self._links_count > self._links_max:
            self._drop_links()

    def _root_words(self, targets: NDArray[np.int64], words: Addresses) -> None:
        at_start = words == self._blocks.starts[targets]
        self._root_starts[targets[at_start]] = True
        self._root_interiors[targets[~at_start]] = True

    def _put_off(
        self, candidates: NDArray[np.bool_], places: Addresses, targets: NDArray[np.int64], words: Addresses
    ) -> NDArray[np.bool_]:
        """Store those of the candidates that are in heap memory but in no block; returns which they are."""
        put_off = np.zeros(len(places), bool)
        if not len(self._heap) or self._unsettled_count > _UNSETTLED_MAX:
            return put_off
        chosen = np.flatnonzero(candidates)
        chosen = chosen[self._heap.find(places[chosen]) >= 0]
        chosen = chosen[~self._blocks.is_usable(places[chosen])]
        put_off[chosen] = True
        self._unsettled.append((places[chosen], targets[chosen], words[chosen]))
        self._unsettled_count += len(chosen)
        return put_off

    def _settle(self, in_use: BlockTable | None) -> None:
        parts, self._unsettled = self._unsettled, []
        if not parts:
            return
        places, targets, words = (np.concatenate(column) for column in zip(*parts, strict=True))
        are_roots = np.ones(len(places), bool) if in_use is None else in_use.is_usable(places)
        self._root_words(targets[are_roots], words[are_roots])
        dismissed = places[~are_roots]
        ranges = self._heap.find(dismissed)
        for number in np.unique(ranges).tolist():
            inside = dismissed[ranges == number]
            self.dismissed.append((int(inside.min()), int(inside.max()) + 8))

    def _is_chunk_behind(self, targets: NDArray[np.int64], words: Addresses) -> NDArray[np.bool_]:
        """Whether words point to what would be the next glibc chunk after the block that they point into."""
        chunk_bytes = _chunk_bytes(self._blocks.sizes[targets])
        behind: NDArray[np.bool_] = words == self._blocks.starts[targets] + chunk_bytes - _CHUNK_ALIGNMENT
        return behind

    def _drop_links(self) -> None:
        """Drop the links to blocks that are already known to be reachable."""
        links = Links.joined(self._links)
        self._reachable = reachable_by(links.to_starts(), self._root_starts | self._reachable)
        links = links.where(~self._reachable[links.targets]).without_repeats()
        self._links, self._links_count = [links], len(links)
        self._links_max = max(_LINKS_MAX, 2 * len(links))


def _chunk_bytes(sizes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The sizes of glibc's chunks for blocks of these sizes, with the word before each."""
    needed = sizes + _CHUNK_WORD_BYTES + _CHUNK_ALIGNMENT - np.uint64(1)
    chunks: NDArray[np.uint64] = np.maximum(needed & ~(_CHUNK_ALIGNMENT - np.uint64(1)), _CHUNK_MIN_BYTES)
    return chunks
