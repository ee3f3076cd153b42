"""Shards of words in the kernel: the places of tables' rows, and the free words.

A table lies in one shard. A table larger than a shard is cut into pieces at page boundaries, each with a
separate part of the page index. A shard is removed with its last table.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterable, Iterator

import numpy as np
from msgspec import Struct

from bpfleakd.kernel import abi, bpf
from bpfleakd.unwind.table import PAGE_BITS, PAGE_BYTES, UnwindTable

_WHOLE = (0, abi.UNWIND_SHARD_WORDS)


class StoreFull(Exception):
    """No room for a table: all shards are in use, or the kernel has no memory for another."""


class Piece(Struct, frozen=True):
    """A stretch of a file's text whose rows are in one shard; `[start, end)` are the file's addresses."""

    start: int
    end: int
    shard: int
    first_word: int
    words: int

    @property
    def index_base(self) -> int:
        """The number that the walker adds to a page number to get the page's word."""
        return (self.first_word - (self.start >> PAGE_BITS)) % (1 << 32)


class _Shard(Struct):
    """`free` are the unused extents: (first word, words), in order."""

    fd: int
    free: list[tuple[int, int]]


class Shards:
    """The shards of the map of maps `descriptor`, by number."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._count_max = bpf.map_info(descriptor).entries
        self._shards: dict[int, _Shard] = {}

    @property
    def words_max(self) -> int:
        """The maximum number of words."""
        return self._count_max * abi.UNWIND_SHARD_WORDS

    @property
    def is_empty(self) -> bool:
        """Whether the kernel has no shard."""
        return not self._numbers()

    def restore(self, pieces: Collection[Piece]) -> None:
        """Open an earlier daemon's shards with these pieces, and remove all others."""
        for number in self._numbers():
            inside = [piece for piece in pieces if piece.shard == number]
            if not inside:
                bpf.map_delete(self._fd, bpf.u32(number))
                continue
            found = bpf.map_lookup(self._fd, bpf.u32(number), 4)
            self._shards[number] = _Shard(bpf.map_get(int.from_bytes(found or b"", "little")), _free(inside))

    def have(self, pieces: Iterable[Piece]) -> bool:
        """Whether the shards of all these pieces exist."""
        return all(piece.shard in self._shards for piece in pieces)

    def place(self, table: UnwindTable, rows: np.ndarray) -> tuple[Piece, ...]:
        """Write a whole table. Raises StoreFull, and then leaves nothing of it."""
        pieces: list[Piece] = []
        try:
            for first_page, last_page in _cut(table.page_index):
                pieces.append(self._place_piece(table, rows, first_page, last_page))
        except StoreFull:
            self.give_back(pieces)
            raise
        return tuple(pieces)

    def give_back(self, pieces: Iterable[Piece]) -> None:
        """Free the words of these pieces; a shard without any is removed."""
        for piece in pieces:
            shard = self._shards[piece.shard]
            shard.free = _joined(sorted([*shard.free, (piece.first_word, piece.words)]))
            if shard.free == [_WHOLE]:
                bpf.map_delete(self._fd, bpf.u32(piece.shard))
                os.close(self._shards.pop(piece.shard).fd)

    def close(self) -> None:
        """Close the shards; they remain in the kernel."""
        for shard in self._shards.values():
            os.close(shard.fd)
        self._shards.clear()

    def _place_piece(self, table: UnwindTable, rows: np.ndarray, first_page: int, last_page: int) -> Piece:
        pages = table.page_index[first_page : last_page + 1].astype(np.int64)
        index_words = len(pages)
        part = rows[pages[0] : pages[-1]]
        shard, first_word = self._allocate(index_words + len(part))
        words = np.concatenate([(pages - pages[0] + first_word + index_words).astype(np.uint32), part])
        with mmap.mmap(self._shards[shard].fd, 4 * abi.UNWIND_SHARD_WORDS) as memory:
            memory[4 * first_word : 4 * (first_word + len(words))] = words.tobytes()
        start = table.text_start + first_page * PAGE_BYTES
        end = table.text_start + last_page * PAGE_BYTES
        return Piece(start, end, shard, first_word, len(words))

    def _allocate(self, words: int) -> tuple[int, int]:
        """The first gap that is large enough: (shard, first word)."""
        for number, shard in self._shards.items():
            for position, (first, length) in enumerate(shard.free):
                if length >= words:
                    rest = [(first + words, length - words)] if length > words else []
                    shard.free[position : position + 1] = rest
                    return number, first
        self._add()
        return self._allocate(words)

    def _add(self) -> None:
        number = next((n for n in range(self._count_max) if n not in self._shards), None)
        if number is None:
            raise StoreFull
        try:
            fd = bpf.map_create(
                bpf.MapType.ARRAY, 4, 4 * abi.UNWIND_SHARD_WORDS, 1, bpf.MAP_FLAG_MMAPABLE, "bpfleakd_shard"
            )
        except OSError as error:
            raise StoreFull from error
        try:
            bpf.map_update(self._fd, bpf.u32(number), bpf.u32(fd))
        except OSError as error:
            os.close(fd)
            raise StoreFull from error
        self._shards[number] = _Shard(fd, [_WHOLE])

    def _numbers(self) -> list[int]:
        """The numbers of the kernel's shards."""
        keys = (bpf.u32(number) for number in range(self._count_max))
        return [int.from_bytes(key, "little") for key in keys if bpf.map_lookup(self._fd, key, 4) is not None]


def _free(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """The extents of a shard that no piece takes."""
    free: list[tuple[int, int]] = []
    position = 0
    for piece in sorted(pieces, key=lambda piece: piece.first_word):
        if piece.first_word > position:
            free.append((position, piece.first_word - position))
        position = piece.first_word + piece.words
    if position < abi.UNWIND_SHARD_WORDS:
        free.append((position, abi.UNWIND_SHARD_WORDS - position))
    return free


def _joined(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Extents in order, with neighbours joined."""
    joined: list[tuple[int, int]] = []
    for first, length in extents:
        if joined and sum(joined[-1]) == first:
            before_first, before_length = joined.pop()
            joined.append((before_first, before_length + length))
        else:
            joined.append((first, length))
    return joined


def _cut(page_index: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of pages [first, last) whose rows and index fit into a shard."""
    positions = page_index.astype(np.int64)
    # Word i of a piece that begins at page f takes positions[i] - positions[f] rows and i - f + 1 words.
    sizes = positions + np.arange(len(positions))
    first = 0
    while first < len(positions) - 1:
        limit = sizes[first] + abi.UNWIND_SHARD_WORDS - 1
        last = int(np.searchsorted(sizes, limit, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last
