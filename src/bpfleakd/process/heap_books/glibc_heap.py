"""The memory of glibc's malloc and the free part of it, read from outside while the process runs.

Source: glibc's malloc/malloc.c and malloc/arena.c, 2.26 to 2.41. Lists change while they are read:
inconsistent elements are omitted and counted.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.model.code.mapping import HUGE_PAGES, Mapping
from bpfleakd.process.heap_books.glibc_arenas import BEHIND_BINS_BYTES, BINS, GlibcArena, arenas_of
from bpfleakd.process.remote_memory import ListElements, RemoteMemory
from bpfleakd.ranges import outside

FREE_CHUNKS_MAX = 200_000
# Heaps of all arenas: a process may pretend to have any number.
_HEAPS_MAX = 16_384
_WORD = 8
_FAST_BINS = 10
_HEAD = struct.Struct("<2Q")
_FLAGS = 7
_IS_MMAPPED = 2
_CHUNK_MIN = 32
_COLUMNS = 3
# A thread's cache since 2.30 (64 counts of two bytes, 64 lists), and before (counts of one byte).
_THREAD_CACHES = {0x290: 128, 0x250: 64}
_CACHE_LISTS = 64
# heap_info is at the beginning of 64 MiB that are aligned to their size.
_HEAP_BYTES = 64 << 20


class FreeKind(IntEnum):
    """Where a free chunk belongs: to a list of the arena, to a thread's cache, to the end of a heap."""

    LISTED = 0
    CACHED = 1
    TOP = 2


class GlibcHeap(Struct, frozen=True):
    """The arenas of a process.

    `areas` are their address ranges (n x 2, uint64), `mapped` those of large blocks in separate mappings (n x
    2). `free` are the free chunks (n x 2: address and bytes) with their `kinds`. `left_out` counts lists and
    chunks that changed while they were read, and lists beyond FREE_CHUNKS_MAX.
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
    """The arenas of the process; None if it has none because it uses another allocator or C library."""
    arenas = arenas_of(memory, mappings)
    if not arenas:
        return None
    reader = _Reader(memory, mappings, chunks_max)
    for arena in arenas:
        reader.read_arena(arena)
    reader.read_lists()
    return reader.result(len(arenas))


def _leads_back(
    chunks: NDArray[np.uint64],
    forward: NDArray[np.uint64],
    back: NDArray[np.uint64],
    ends: NDArray[np.uint64],
) -> NDArray[np.bool_]:
    """Whether the next chunk, or the previous one, refers back to a chunk."""
    if not len(chunks):
        return np.zeros(0, np.bool_)
    order = np.argsort(chunks)
    ordered = chunks[order]

    def leads_back(link: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.bool_]:
        place = np.minimum(np.searchsorted(ordered, link), len(ordered) - 1)
        found: NDArray[np.bool_] = (ordered[place] == link) & (other[order][place] == chunks)
        return found | np.isin(link, ends)

    return leads_back(forward, back) | leads_back(back, forward)


def _joined(mappings: Iterable[Mapping]) -> list[tuple[int, int]]:
    """Start and end, with neighbours of one kind joined: madvise(2), mlock(2) and others split mappings."""
    joined: list[tuple[int, int]] = []
    path = ""
    for mapping in mappings:
        if joined and joined[-1][1] == mapping.start and path == mapping.path:
            joined[-1] = joined[-1][0], mapping.end
        else:
            joined.append((mapping.start, mapping.end))
        path = mapping.path
    return joined


class _Reader:
    """Reads free chunks and areas of one process."""

    def __init__(self, memory: RemoteMemory, mappings: Sequence[Mapping], chunks_max: int) -> None:
        self._memory = memory
        self._writable = _joined(
            mapping
            for mapping in mappings
            if mapping.writable
            and mapping.readable
            and (not mapping.path.startswith("/") or mapping.path.startswith(HUGE_PAGES))
        )
        self._heap = _joined(mapping for mapping in mappings if mapping.path == "[heap]")
        self._chunks_max = chunks_max
        self._starts = [start for start, _ in self._writable]
        # The last area that was found: most lists stay in one area.
        self._recent = (0, 0)
        self._areas: set[tuple[int, int]] = set()
        self._heaps: set[int] = set()
        self._bounds = np.array(self._writable, np.uint64).reshape(-1, 2)
        self._rings: list[tuple[int, int, int]] = []
        self._fast: list[int] = []
        self._cached: list[int] = []
        # Address, bytes and kind of each free chunk.
        self._free: list[NDArray[np.uint64]] = []
        self._left_out = 0

    def read_arena(self, arena: GlibcArena) -> None:
        """Read an arena's areas, the beginnings of its lists, and the cache of the thread that created it."""
        distance = (arena.bins - arena.base) // _WORD
        top = int(arena.words[distance - 2])
        heaps = self._heaps_of(arena.base, top)
        is_main = not heaps
        areas = self._main_areas(top) if is_main else heaps
        self._areas.update(areas)
        size = self._size(top)
        if size:
            self._free.append(np.array([[top, size, FreeKind.TOP]], np.uint64))
        bins = arena.words[distance : distance + 2 * BINS].reshape(-1, 2).tolist()
        for number, (first, last) in enumerate(bins):
            head = arena.bins + (number - 1) * 2 * _WORD
            if first != head:
                self._rings.append((head, first, last))
        self._fast += filter(None, arena.words[distance - 2 - _FAST_BINS : distance - 2].tolist())
        # The cache of the arena's first thread is the first chunk: in the heap, or after malloc_state.
        first_chunks = [start for start, _ in self._heap] if is_main else [arena.bins + BEHIND_BINS_BYTES]
        for address in first_chunks:
            self._read_cache(-(-address // 16) * 16)

    def read_lists(self) -> None:
        """The free chunks of all arenas."""
        ends = np.array([head for head, _first, _last in self._rings], np.uint64)
        self._take(self._memory.rings(self._rings, self._room()), FreeKind.LISTED, ends)
        # Since glibc 2.32, a link of a singly linked list is mangled with its own address.
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
        """All results, in order of addresses."""
        table = np.concatenate(self._free) if self._free else np.zeros((0, _COLUMNS), np.uint64)
        # A chunk that was moved between lists meanwhile may be in both.
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

    def _heaps_of(self, arena: int, top: int) -> list[tuple[int, int]]:
        """The heaps of an arena, the last one first (heap_info: ar_ptr, prev); [] for the main one."""
        heap = top & ~(_HEAP_BYTES - 1)
        heaps: list[tuple[int, int]] = []
        while heap and heap % _HEAP_BYTES == 0 and heap not in self._heaps and len(self._heaps) < _HEAPS_MAX:
            area = self._area(heap)
            try:
                if area is None or self._memory.word(heap) != arena:
                    break
                self._heaps.add(heap)
                # The kernel joins the mapping with a heap after it, and with any other anonymous memory.
                heaps.append((heap, min(area[1], heap + _HEAP_BYTES)))
                heap = self._memory.word(heap + _WORD)
            except OSError:
                break
        return heaps

    def _main_areas(self, top: int) -> list[tuple[int, int]]:
        area = self._area(top)
        return list({*self._heap, *([area] if area else [])})

    def _area(self, address: int) -> tuple[int, int] | None:
        """The writable mapping that contains this address."""
        if self._recent[0] <= address < self._recent[1]:
            return self._recent
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._writable[place][1]:
            return None
        self._recent = self._writable[place]
        return self._recent

    def _size(self, chunk: int) -> int:
        """The bytes of a chunk; 0 if there cannot be one."""
        area = self._area(chunk)
        if area is None:
            return 0
        try:
            size = self._memory.word(chunk + _WORD) & ~_FLAGS
        except OSError:
            return 0
        return size if _CHUNK_MIN // 2 <= size <= area[1] - chunk else 0

    def _take(self, found: ListElements, kind: FreeKind, ends: NDArray[np.uint64] | None = None) -> None:
        """Add the plausible chunks; for lists with these `ends`, only those that are in their list."""
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
        """How many more chunks may be read."""
        return max(0, self._chunks_max - sum(map(len, self._free)))

    def _is_mangled(self, firsts: Sequence[int]) -> bool:
        """Whether links of these lists are mangled: plain ones refer to chunks."""
        plain = mangled = 0
        for first, link in zip(
            firsts, self._memory.gather([one + 2 * _WORD for one in firsts], _WORD), strict=True
        ):
            raw = int.from_bytes(link, "little")
            here = first + 2 * _WORD >> 12
            plain += raw % 16 == 0 and self._area(raw) is not None
            mangled += raw != here and (raw ^ here) % 16 == 0 and self._area(raw ^ here) is not None
            # The last one in its list.
            mangled += raw == here and raw != 0
        return mangled > plain

    def _read_cache(self, chunk: int) -> None:
        """Read a thread's cached chunks (tcache_perthread_struct), if this chunk is its cache."""
        size = self._size(chunk)
        if size not in _THREAD_CACHES:
            return
        try:
            lists = self._memory.read(chunk + 2 * _WORD + _THREAD_CACHES[size], _CACHE_LISTS * _WORD)
        except OSError:
            return
        self._cached += [link - 2 * _WORD for link in np.frombuffer(lists, np.uint64).tolist() if link]

    def _mapped(self) -> list[tuple[int, int]]:
        """Large blocks: writable memory outside of the areas that begins with a chunk with IS_MMAPPED."""
        others = list(outside(self._writable, sorted(self._areas)))
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
