"""Finds the arenas of glibc's malloc in the memory of a process.

The arenas form a ring (`malloc_state.next`) that begins with `main_arena`, a variable of libc without a
symbol. bpfleakd finds it by its 127 bins, which are lists that begin and end in a head: the head of an empty
list points to itself, as if it were a chunk that begins 16 bytes before its first pointer; that of another
list points to two chunks. Only the distance from the arena's beginning to its bins depends on the version;
the closed ring confirms it. Source: glibc's malloc/malloc.c and malloc/arena.c, 2.26 to 2.41.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.remote_memory import RemoteMemory

BINS = 127
_WORD = 8
_BIN_BYTES = 2 * _WORD * BINS
_BINMAP_BYTES = 16
# The part of malloc_state from its bins to `max_system_mem`.
BEHIND_BINS_BYTES = _BIN_BYTES + _BINMAP_BYTES + 5 * _WORD
# The distance from the beginning of malloc_state to its bins: since 2.27, and before it had
# `have_fastchunks`.
_BINS_AT = (112, 104)
# Maximum of examined arenas: a process may pretend to have any number.
_LOOKS_MAX = 4_096
# A busy program has few empty bins; some change while they are read.
_EMPTY_BINS_MIN = 2
_BINS_MIN = BINS - 2
_FIRST_PAGE, _ADDRESSES_END = 4096, 1 << 47
# The size limit of a file's variables, and of all.
_DATA_MAX_BYTES = 16 << 20
_VARIABLES_MAX_BYTES = 256 << 20


class GlibcArena(NamedTuple):
    """The addresses of an arena and of its bins, and its contents as words."""

    base: int
    bins: int
    words: NDArray[np.uint64]


def arenas_of(memory: RemoteMemory, mappings: Sequence[Mapping]) -> list[GlibcArena]:
    """The ring that begins in the variables of libc, or of a static program; [] if there is none."""
    looks = iter(range(_LOOKS_MAX))
    for start, end in variables(mappings):
        try:
            words = np.frombuffer(memory.read(start, end - start), np.uint64)
        except OSError:
            continue
        for first in _bins(start, words):
            for distance in _BINS_AT:
                ring = _ring(memory, start + _WORD * first - distance, distance, looks)
                if ring:
                    return ring
    return []


def variables(mappings: Sequence[Mapping]) -> Iterator[tuple[int, int]]:
    """Yield writable private mappings of files, including the zeroed variables after them."""
    left = _VARIABLES_MAX_BYTES
    for mapping, following in zip(mappings, [*mappings[1:], None], strict=True):
        if not (mapping.path.startswith("/") and mapping.writable and mapping.readable) or mapping.shared:
            continue
        end = mapping.end
        if following is not None and not following.path and following.start == end and following.writable:
            end = following.end
        end = min(end, mapping.start + min(_DATA_MAX_BYTES, left))
        left -= end - mapping.start
        if end > mapping.start:
            yield mapping.start, end


def _bins(start: int, words: NDArray[np.uint64]) -> Iterator[int]:
    """Yield the words at which 127 list heads may begin."""
    heads = _heads(start, len(words) - 1)
    empty = np.flatnonzero((words[:-1] == heads) & (words[1:] == heads))
    if len(empty) < _EMPTY_BINS_MIN:
        return
    # The surroundings of empty heads, as far as 127 heads reach.
    breaks = np.flatnonzero(np.diff(empty) > 2 * BINS)
    for first, last in zip(empty[[0, *breaks + 1]], empty[[*breaks, -1]], strict=True):
        begin = max(0, int(first) - 2 * BINS)
        yield from (begin + place for place in _runs(start + _WORD * begin, words[begin : last + 2 * BINS]))


def _runs(start: int, words: NDArray[np.uint64]) -> Iterator[int]:
    heads, forward, back = _heads(start, len(words) - 1), words[:-1], words[1:]
    empty = (forward == heads) & (back == heads)
    fits = empty | (_is_chunk(forward) & _is_chunk(back) & (forward != heads) & (back != heads))
    for parity in (0, 1):
        of_bins, of_empty = _sums(fits[parity::2]), _sums(empty[parity::2])
        found = np.flatnonzero((of_bins >= _BINS_MIN) & (of_empty >= _EMPTY_BINS_MIN))
        yield from (2 * found + parity).tolist()


def _heads(start: int, count: int) -> NDArray[np.uint64]:
    """The list heads whose first pointers are the words from this address on."""
    return start + _WORD * np.arange(max(0, count), dtype=np.uint64) - np.uint64(2 * _WORD)


def _is_chunk(addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether chunks may begin at these addresses."""
    fits: NDArray[np.bool_] = addresses % np.uint64(16) == 0
    return fits & (addresses >= np.uint64(_FIRST_PAGE)) & (addresses < np.uint64(_ADDRESSES_END))


def _sums(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """How many of the next 127 flags are set, for each flag that has as many after it."""
    sums = np.concatenate([[0], np.cumsum(flags)])
    return sums[BINS:] - sums[:-BINS] if len(sums) > BINS else np.zeros(0, np.intp)


def _arena(memory: RemoteMemory, base: int, distance: int) -> GlibcArena | None:
    """The malloc_state at this address; None if it cannot be one."""
    if base % 8 or base <= 0:
        return None
    try:
        words = np.frombuffer(memory.read(base, distance + BEHIND_BINS_BYTES), np.uint64)
    except OSError:
        return None
    top, following = int(words[distance // 8 - 2]), int(words[(distance + _BIN_BYTES + _BINMAP_BYTES) // 8])
    if top % 16 not in (0, 8) or following % 8 or not following:
        return None
    return GlibcArena(base, base + distance, words)


def _ring(memory: RemoteMemory, base: int, distance: int, looks: Iterator[int]) -> list[GlibcArena]:
    """The arenas of the ring from this address on; [] if it is not a ring."""
    ring: dict[int, GlibcArena] = {}
    address = base
    while address not in ring:
        arena = _arena(memory, address, distance) if next(looks, None) is not None else None
        if arena is None:
            return []
        ring[address] = arena
        address = int(arena.words[(distance + _BIN_BYTES + _BINMAP_BYTES) // 8])
    return list(ring.values()) if address == base else []
