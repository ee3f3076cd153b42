"""pymalloc's pools: the memory of all Python objects of up to 512 bytes, read from outside.

A pool is 16 KiB (4 KiB before 3.10), aligned, and holds blocks of one size behind a header
(Objects/obmalloc.c, struct pool_header). No symbol of a stripped interpreter leads to all pools, so bpfleakd
checks every place in the process' anonymous memory where a pool could be: the last word of its header must
match its size class.

    ref.count u64, freeblock, nextpool, prevpool, arenaindex u32, szidx u32, nextoffset u32, maxnextoffset u32
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.memory import MemoryPart, MemoryReader, written_parts

_HEADER = np.dtype(
    [
        ("count", "<u8"),
        ("free", "<u8"),
        ("next", "<u8"),
        ("previous", "<u8"),
        ("arena", "<u4"),
        ("size_class", "<u4"),
        ("next_offset", "<u4"),
        ("max_next_offset", "<u4"),
    ]
)
_HEADER_BYTES = _HEADER.itemsize
_WORD_BYTES = 8
_ALIGNMENT_BYTES = 16
_SIZE_CLASSES = 32
_ROWS_AT_ONCE = 1024


class Pools(Struct, frozen=True):
    """Pools of one size class at `starts`.

    `words` has one row per pool; `is_live` one row of booleans, one per block.
    """

    block_bytes: int
    starts: NDArray[np.uint64]
    words: NDArray[np.uint64]
    is_live: NDArray[np.bool_]

    def copied(self) -> Pools:
        """A copy: the next reading overwrites the original."""
        return replace(self, words=self.words.copy())

    def same_heads(self, other: Pools, rows: NDArray[np.intp], others: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Whether each block has the same type in `rows` of these pools and `others` of another reading."""
        stride = self.block_bytes // _WORD_BYTES
        same = np.ones((len(rows), self.is_live.shape[1]), np.bool_)
        for word in (1, 3, 5):
            if word < stride:
                first = _HEADER_BYTES // _WORD_BYTES + word
                mine, theirs = self.words[rows, first::stride], other.words[others, first::stride]
                same &= (mine == theirs)[:, : same.shape[1]]
        return same

    @property
    def live_bytes(self) -> int:
        """The size of the live blocks."""
        return int(np.count_nonzero(self.is_live)) * self.block_bytes

    def addresses(self) -> NDArray[np.uint64]:
        """The address of each live block."""
        offsets = _HEADER_BYTES + np.arange(self.is_live.shape[1]) * self.block_bytes
        addresses: NDArray[np.uint64] = (self.starts[:, None] + offsets.astype(np.uint64))[self.is_live]
        return addresses

    def column(self, word: int) -> NDArray[np.uint64]:
        """The `word`th word of every live block."""
        first = _HEADER_BYTES // _WORD_BYTES + word
        stride = self.block_bytes // _WORD_BYTES
        blocks = self.words[:, first::stride][:, : self.is_live.shape[1]]
        column: NDArray[np.uint64] = blocks[self.is_live]
        return column


def pool_bytes(version: tuple[int, int]) -> int:
    """The size of a pool: 16 KiB since a radix tree finds arenas (3.10)."""
    return 16_384 if version >= (3, 10) else 4_096


def arena_bytes(version: tuple[int, int]) -> int:
    """The size of pymalloc's mappings: ARENA_SIZE of Objects/obmalloc.c."""
    return 1 << 20 if version >= (3, 10) else 256 << 10


def is_anonymous(mapping: Mapping) -> bool:
    """Whether a mapping may contain arenas; it may have a name (PR_SET_VMA_ANON_NAME)."""
    is_named = mapping.path and not mapping.path.startswith("[anon:")
    return mapping.writable and mapping.readable and not is_named and not mapping.shared


def find_pools(pid: int, mappings: Sequence[Mapping], size_bytes: int) -> dict[int, NDArray[np.uint64]]:
    """The addresses of pools in use, by size class. Raises NoSuchProcess or AccessDenied."""
    found: dict[int, list[NDArray[np.uint64]]] = {}
    for mapping in mappings:
        if not is_anonymous(mapping):
            continue
        for part in written_parts(pid, MemoryPart(mapping.start, mapping.end), shared=False):
            first = -(-part.start // size_bytes) * size_bytes
            places = np.arange(first, part.end, size_bytes).astype(np.uint64)
            for addresses, rows in _read_rows(pid, places, _HEADER_BYTES):
                headers = _headers_of(rows)
                right = _is_header(headers, size_bytes)
                for size_class in np.unique(headers["size_class"][right]).tolist():
                    chosen = right & (headers["size_class"] == size_class)
                    found.setdefault(size_class, []).append(addresses[chosen])
    return {size_class: np.concatenate(parts) for size_class, parts in found.items()}


def read_pools(pid: int, size_class: int, addresses: NDArray[np.uint64], size_bytes: int) -> Iterator[Pools]:
    """Yield the pools of one size class, without those that changed their use meanwhile.

    Raises NoSuchProcess or AccessDenied.
    """
    block_bytes = (size_class + 1) * _ALIGNMENT_BYTES
    for starts, rows in _read_rows(pid, addresses, size_bytes):
        headers = _headers_of(rows)
        right = _is_header(headers, size_bytes) & (headers["size_class"] == size_class)
        if right.any():
            live = _live_blocks(starts[right], rows[right], headers[right], block_bytes, size_bytes)
            yield Pools(block_bytes, starts[right], rows[right], live)


def _read_rows(
    pid: int, starts: NDArray[np.uint64], size_bytes: int
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Yield the memory at each place, as rows of words, without unreadable ones."""
    reader = MemoryReader(pid)
    row_words = size_bytes // _WORD_BYTES
    for first in range(0, len(starts), _ROWS_AT_ONCE):
        some = starts[first : first + _ROWS_AT_ONCE].tolist()
        parts = [MemoryPart(start, start + size_bytes) for start in some]
        for addresses, lengths, words in reader.read(parts):
            whole = lengths == row_words
            ends = np.cumsum(lengths)
            if not whole.any():
                continue
            index = (ends[whole] - row_words)[:, None] + np.arange(row_words)[None, :]
            yield addresses[whole].astype(np.uint64), words[index]


def _headers_of(rows: NDArray[np.uint64]) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(rows[:, : _HEADER_BYTES // _WORD_BYTES]).tobytes(), _HEADER)


def _is_header(headers: np.ndarray, size_bytes: int) -> NDArray[np.bool_]:
    """Whether these are headers of pools with blocks."""
    size_class = headers["size_class"].astype(np.int64)
    block_bytes = (size_class + 1) * _ALIGNMENT_BYTES
    right = (size_class >= 0) & (size_class < _SIZE_CLASSES)
    right &= headers["max_next_offset"] == size_bytes - block_bytes
    count = headers["count"] & np.uint64(0xFFFFFFFF)
    right &= (count > 0) & (count <= (size_bytes - _HEADER_BYTES) // np.maximum(block_bytes, 16))
    next_offset = headers["next_offset"].astype(np.int64)
    inside = (next_offset >= _HEADER_BYTES) & (next_offset <= size_bytes)
    is_header: NDArray[np.bool_] = right & inside & ((next_offset - _HEADER_BYTES) % block_bytes == 0)
    return is_header


def _live_blocks(
    starts: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    headers: np.ndarray,
    block_bytes: int,
    size_bytes: int,
) -> NDArray[np.bool_]:
    """Which blocks are in use: handed out at least once, and not in the list of free ones."""
    block_count = (size_bytes - _HEADER_BYTES) // block_bytes
    handed_out = (headers["next_offset"].astype(np.int64) - _HEADER_BYTES) // block_bytes
    live = np.arange(block_count)[None, :] < handed_out[:, None]
    free = headers["free"].astype(np.uint64)
    pools = np.arange(len(rows))
    # Each step follows every pool's list by one block; a list is at most as long as its pool.
    for _ in range(block_count):
        offset = (free - starts[pools]).astype(np.int64)
        index, rest = np.divmod(offset - _HEADER_BYTES, block_bytes)
        inside = (free != 0) & (offset >= _HEADER_BYTES) & (index < handed_out[pools]) & (rest == 0)
        pools, free, index, offset = pools[inside], free[inside], index[inside], offset[inside]
        if not len(pools):
            break
        live[pools, index] = False
        free = rows[pools, offset // _WORD_BYTES]
    return live
