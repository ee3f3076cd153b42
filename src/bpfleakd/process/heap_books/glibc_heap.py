"""What glibc's malloc has got from the kernel, and what of it is free: read from outside as the process runs.

The arenas form a ring (`malloc_state.next`) that begins with `main_arena`, a variable of libc without a
symbol. It is found by its bins: an empty bin's list head points to itself, as if it were a chunk that begins
16 bytes before its first pointer, and most of the 127 bins are empty. Nothing depends on the version but the
distance from the arena's beginning to its bins, for which the closed ring is the proof. Source: glibc's
malloc/malloc.c and malloc/arena.c, 2.26 to 2.41.

Lists change while they are read: what does not fit is left out and counted.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.remote_memory import ListElements, RemoteMemory

__all__ = ["FREE_CHUNKS_MAX", "FreeKind", "GlibcHeap", "read_glibc_heap", "variables"]

FREE_CHUNKS_MAX = 200_000
# Arenas that are looked at in all, and heaps of all arenas: a process may make up as many as it likes.
_LOOKS_MAX = 4_096
_HEAPS_MAX = 16_384
_WORD = 8
_BINS = 127
_BIN_BYTES = 2 * 8 * _BINS
_BINMAP_BYTES = 16
_FAST_BINS = 10
# From the beginning of malloc_state to its bins: since 2.27, and before it had `have_fastchunks`.
_BINS_AT = (112, 104)
# malloc_state up to `max_system_mem`, and all bins.
_BEHIND_BINS_BYTES = _BIN_BYTES + _BINMAP_BYTES + 5 * _WORD
_EMPTY_BINS_MIN = 40
_HEAD = struct.Struct("<2Q")
_FLAGS = 7
_IS_MMAPPED = 2
_CHUNK_MIN = 32
_COLUMNS = 3
# A thread's cache since 2.30 (64 counts of two bytes, 64 lists), and before (counts of one byte).
_THREAD_CACHES = {0x290: 128, 0x250: 64}
_CACHE_LISTS = 64
# heap_info lies at the beginning of 64 MiB that are aligned to their size.
_HEAP_BYTES = 64 << 20
# Variables of a file, and of all.
_DATA_MAX_BYTES = 16 << 20
_VARIABLES_MAX_BYTES = 256 << 20


class FreeKind(IntEnum):
    """What a free chunk is part of: a list of the arena, a thread's cache, the end of a heap."""

    LISTED = 0
    CACHED = 1
    TOP = 2


class _Arena(NamedTuple):
    base: int
    bins: int
    words: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class GlibcHeap:
    """The arenas of a process.

    `areas` are the address ranges that they consist of (n x 2, uint64), large blocks with a mapping of their
    own apart (`mapped`, n x 2). `free` are the free chunks (n x 2: address and bytes) with their `kinds`.
    `left_out` counts lists and chunks that changed while they were read, and lists beyond FREE_CHUNKS_MAX.
    """

    arenas: int
    areas: NDArray[np.uint64]
    mapped: NDArray[np.uint64]
    free: NDArray[np.uint64]
    kinds: NDArray[np.int8]
    left_out: int


def read_glibc_heap(
    memory: RemoteMemory, mappings: Sequence[Mapping], *, chunks_max: int = FREE_CHUNKS_MAX
) -> GlibcHeap | None:
    """The arenas of the process; None if it has none, as with another allocator or C library."""
    arenas = _arenas(memory, mappings)
    if not arenas:
        return None
    reader = _Reader(memory, mappings, chunks_max)
    for arena in arenas:
        reader.read_arena(arena)
    reader.read_lists()
    return reader.result(len(arenas))


def _arenas(memory: RemoteMemory, mappings: Sequence[Mapping]) -> list[_Arena]:
    """The ring that begins in the variables of libc, or of a static program; [] without one."""
    looks = iter(range(_LOOKS_MAX))
    for start, end in variables(mappings):
        try:
            words = np.frombuffer(memory.read(start, end - start), np.uint64)
        except OSError:
            continue
        heads = start + _WORD * np.arange(len(words), dtype=np.uint64) - np.uint64(2 * _WORD)
        own = (words[:-1] == heads[:-1]) & (words[1:] == heads[:-1])
        places = np.flatnonzero(own)
        for first in _crowds(places):
            for distance in _BINS_AT:
                ring = _ring(memory, start + _WORD * first - distance, distance, looks)
                if ring:
                    return ring
    return []


def _crowds(places: NDArray[np.intp]) -> Iterator[int]:
    """Words where 127 list heads may begin, most of which point to themselves."""
    if len(places) < _EMPTY_BINS_MIN:
        return
    for place in places[: len(places) - _EMPTY_BINS_MIN + 1].tolist():
        ahead = np.searchsorted(places, place + 2 * _BINS) - np.searchsorted(places, place)
        if ahead >= _EMPTY_BINS_MIN:
            # Those before the first empty one are not: the ring shows where they begin.
            yield from (place - 2 * skipped for skipped in range(_BINS))
            return


def _arena(memory: RemoteMemory, base: int, distance: int) -> _Arena | None:
    """malloc_state at this address; None if it cannot be one."""
    if base % 8 or base <= 0:
        return None
    try:
        words = np.frombuffer(memory.read(base, distance + _BEHIND_BINS_BYTES), np.uint64)
    except OSError:
        return None
    top, following = int(words[distance // 8 - 2]), int(words[(distance + _BIN_BYTES + _BINMAP_BYTES) // 8])
    if top % 16 not in (0, 8) or following % 8 or not following:
        return None
    return _Arena(base, base + distance, words)


def _ring(memory: RemoteMemory, base: int, distance: int, looks: Iterator[int]) -> list[_Arena]:
    """The arenas from the one at this address on, up to it again; [] if they do not lead there."""
    ring: dict[int, _Arena] = {}
    address = base
    while address not in ring:
        arena = _arena(memory, address, distance) if next(looks, None) is not None else None
        if arena is None:
            return []
        ring[address] = arena
        address = int(arena.words[(distance + _BIN_BYTES + _BINMAP_BYTES) // 8])
    return list(ring.values()) if address == base else []


def _leads_back(
    chunks: NDArray[np.uint64],
    forward: NDArray[np.uint64],
    back: NDArray[np.uint64],
    ends: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    """Whether the next chunk, or the one before, leads back to a chunk."""
    if not len(chunks):
        return np.zeros(0, np.bool_)
    order = np.argsort(chunks)
    ordered = chunks[order]

    def leads_back(link: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.bool_]:
        place = np.minimum(np.searchsorted(ordered, link), len(ordered) - 1)
        found: NDArray[np.bool_] = (ordered[place] == link) & (other[order][place] == chunks)
        return found | np.isin(link, ends)

    return leads_back(forward, back) | leads_back(back, forward)


def variables(mappings: Sequence[Mapping]) -> Iterator[tuple[int, int]]:
    """Writable private mappings of files, with the zeroed variables behind them."""
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


class _Reader:
    """Free chunks and areas of one process."""

    def __init__(self, memory: RemoteMemory, mappings: Sequence[Mapping], chunks_max: int) -> None:
        self._memory = memory
        self._writable = [
            (mapping.start, mapping.end)
            for mapping in mappings
            if mapping.writable and mapping.readable and not mapping.path.startswith("/")
        ]
        self._heap = [(m.start, m.end) for m in mappings if m.path == "[heap]"]
        self._chunks_max = chunks_max
        self._starts = [start for start, _ in self._writable]
        # The last area that was found: most lists stay in one.
        self._recent = (0, 0)
        self._areas: set[tuple[int, int]] = set()
        self._heaps: set[int] = set()
        self._bounds = np.array(self._writable, np.uint64).reshape(-1, 2)
        self._rings: list[tuple[int, int, int]] = []
        self._fast: list[int] = []
        self._cached: list[int] = []
        # Of each free chunk its address, bytes and kind.
        self._free: list[NDArray[np.uint64]] = []
        self._left_out = 0

    def read_arena(self, arena: _Arena) -> None:
        """Its areas, and where its lists begin: with the cache of the thread that made it."""
        distance = (arena.bins - arena.base) // _WORD
        top = int(arena.words[distance - 2])
        heaps = self._heaps_of(top)
        is_main = not any(start <= arena.base < end for start, end in heaps)
        areas = self._main_areas(top) if is_main else heaps
        self._areas.update(areas)
        size = self._size(top)
        if size:
            self._free.append(np.array([[top, size, FreeKind.TOP]], np.uint64))
        bins = arena.words[distance : distance + 2 * _BINS].reshape(-1, 2).tolist()
        for number, (first, last) in enumerate(bins):
            head = arena.bins + (number - 1) * 2 * _WORD
            if first != head:
                self._rings.append((head, first, last))
        self._fast += filter(None, arena.words[distance - 2 - _FAST_BINS : distance - 2].tolist())
        # The cache of the thread that was here first is the first chunk: in the heap, or behind malloc_state.
        first_chunks = [start for start, _ in self._heap] if is_main else [arena.bins + _BEHIND_BINS_BYTES]
        for address in first_chunks:
            self._read_cache(-(-address // 16) * 16)

    def read_lists(self) -> None:
        """The free chunks of all arenas."""
        ends = np.array([head for head, _first, _last in self._rings], np.uint64)
        self._take(self._memory.rings(self._rings, self._room()), FreeKind.LISTED, ends)
        # A link of a list that goes one way is mangled with its own address since glibc 2.32.
        is_mangled = self._is_mangled([*self._fast, *self._cached])
        for firsts, kind, behind_bytes in (
            (self._fast, FreeKind.LISTED, 0),
            (self._cached, FreeKind.CACHED, 2 * _WORD),
        ):
            found = self._memory.chains(
                firsts, self._room(), behind_bytes=behind_bytes, is_mangled=is_mangled
            )
            self._take(found, kind)

    def result(self, arenas: int) -> GlibcHeap:
        """All that was read, in order of addresses."""
        table = np.concatenate(self._free) if self._free else np.zeros((0, _COLUMNS), np.uint64)
        # A chunk that was moved from one list to another meanwhile may be in both.
        table = table[np.unique(table[:, 0], return_index=True)[1]]
        areas = np.array(sorted(self._areas), np.uint64).reshape(-1, 2)
        return GlibcHeap(
            arenas=arenas,
            areas=areas,
            mapped=np.array(self._mapped(), np.uint64).reshape(-1, 2),
            free=table[:, :2],
            kinds=table[:, 2].astype(np.int8),
            left_out=self._left_out,
        )

    def _heaps_of(self, top: int) -> list[tuple[int, int]]:
        """The heaps of an arena that is not the main one, the last one first (heap_info.prev)."""
        heap = top & ~(_HEAP_BYTES - 1)
        heaps: list[tuple[int, int]] = []
        while heap and heap % _HEAP_BYTES == 0 and heap not in self._heaps and len(self._heaps) < _HEAPS_MAX:
            area = self._area(heap)
            if area is None or area[0] != heap:
                break
            self._heaps.add(heap)
            heaps.append(area)
            try:
                heap = self._memory.word(heap + _WORD)
            except OSError:
                break
        return heaps

    def _main_areas(self, top: int) -> list[tuple[int, int]]:
        area = self._area(top)
        return list({*self._heap, *([area] if area else [])})

    def _area(self, address: int) -> tuple[int, int] | None:
        """The writable mapping that has this address."""
        if self._recent[0] <= address < self._recent[1]:
            return self._recent
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._writable[place][1]:
            return None
        self._recent = self._writable[place]
        return self._recent

    def _size(self, chunk: int) -> int:
        """Bytes of a chunk; 0 if there can be none."""
        area = self._area(chunk)
        if area is None:
            return 0
        try:
            size = self._memory.word(chunk + _WORD) & ~_FLAGS
        except OSError:
            return 0
        return size if _CHUNK_MIN // 2 <= size <= area[1] - chunk else 0

    def _take(self, found: ListElements, kind: FreeKind, ends: NDArray[np.uint64] | None = None) -> None:
        """Take in the chunks that can be such; of lists with these `ends`, those that are in their list."""
        chunks, words = found.addresses, found.words
        sizes = words[:, 1] & ~np.uint64(_FLAGS)
        areas = np.searchsorted(self._bounds[:, 0], chunks, side="right").astype(np.intp) - 1
        ends_of = np.append(self._bounds[:, 1], np.uint64(0))[areas]
        fits = (chunks % 16 == 0) & (chunks < ends_of) & (sizes >= _CHUNK_MIN) & (sizes <= ends_of - chunks)
        if ends is not None:
            fits &= _leads_back(chunks, words[:, 2], words[:, 3], ends)
        self._left_out += found.cut + int(np.count_nonzero(~fits))
        taken = [chunks[fits], sizes[fits], np.full(np.count_nonzero(fits), kind, np.uint64)]
        self._free.append(np.stack(taken, axis=1))

    def _room(self) -> int:
        """How many more chunks are read."""
        return max(0, self._chunks_max - sum(map(len, self._free)))

    def _is_mangled(self, firsts: Sequence[int]) -> bool:
        """Whether links of these lists are mangled: plain ones lead to chunks."""
        plain = mangled = 0
        for first, link in zip(
            firsts, self._memory.gather([one + 2 * _WORD for one in firsts], _WORD), strict=True
        ):
            raw = int.from_bytes(link, "little")
            here = first + 2 * _WORD >> 12
            plain += raw % 16 == 0 and self._area(raw) is not None
            mangled += raw != here and (raw ^ here) % 16 == 0 and self._area(raw ^ here) is not None
            # The last one of its list.
            mangled += raw == here and raw != 0
        return mangled > plain

    def _read_cache(self, chunk: int) -> None:
        """The chunks that a thread keeps for itself (tcache_perthread_struct), if its cache is there."""
        size = self._size(chunk)
        if size not in _THREAD_CACHES:
            return
        try:
            lists = self._memory.read(chunk + 2 * _WORD + _THREAD_CACHES[size], _CACHE_LISTS * _WORD)
        except OSError:
            return
        self._cached += [link - 2 * _WORD for link in np.frombuffer(lists, np.uint64).tolist() if link]

    def _mapped(self) -> list[tuple[int, int]]:
        """Large blocks: mappings that are, from their beginning on, chunks with IS_MMAPPED."""
        areas = {start for start, _end in self._areas}
        others = [(start, end) for start, end in self._writable if start not in areas]
        try:
            heads = self._memory.gather([start for start, _end in others], _HEAD.size)
        except OSError:
            return []
        found = []
        for (start, end), head in zip(others, heads, strict=True):
            at = start
            while at < end and len(head) == _HEAD.size:
                before, size = _HEAD.unpack(head)
                length = size & ~_FLAGS
                if size & _FLAGS != _IS_MMAPPED or before or not length or length % 4096 or length > end - at:
                    break
                found.append((at, at + length))
                at += length
                if at < end:
                    try:
                        head = self._memory.read(at, _HEAD.size)
                    except OSError:
                        break
        return found
