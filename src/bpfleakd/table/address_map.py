"""The address space of one traced process: who mapped what, and what of it is still there.

Rules:
  - Every byte has one owner or none. An owner is a call site (SiteKey) or one of `Special`. Operations come
    in the order in which the kernel side reports them, with the arguments of calls that succeeded.
  - Addresses are rounded down to pages and lengths up, as the kernel does.
  - A new mapping replaces what was there (MAP_FIXED). Memory mapped without any access is RESERVED,
    whoever mapped it, but what is the allocator's (ALLOCATOR) stays the allocator's, with any access.
  - mprotect gives RESERVED and DISCARDED parts to who makes them accessible, and makes them RESERVED again
    where the access is taken away. Parts that were accessible before do not change hands.
  - madvise that drops contents makes committed parts DISCARDED, and nothing else. A program that then uses
    them again without mprotect (Go does) is not seen to do so.
  - mremap moves bytes with their owner; only what it adds is its caller's. The old range is taken out
    of the map at the call and counts as live until its result is known: once the kernel has moved it,
    another thread may get that range before the caller has returned. munmap can be told in the same way.
  - A region is what one call gave to an owner. It counts as one, in however many parts, until its last byte
    is gone; times and threads are its own. Live figures fall, allocated ones never do.
  - A full map refuses and counts: new regions are UNRECORDED then, which are kept as bytes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model import AllocationKind, Mapping, SiteCounters, SiteKey
from bpfleakd.table.census import SiteCensus
from bpfleakd.table.intervals import Intervals, Piece, without
from bpfleakd.table.site_table import COUNTERS

__all__ = ["AddressMap", "LiveRegion", "Owner", "Special"]

_PAGE_BYTES = 4096
# An interval takes about 250 bytes. The kernel joins what we keep apart, so that vm.max_map_count is no bound.
_INTERVALS_MAX = 1_000_000


class Special(Enum):
    """Owners that are no call sites."""

    BASELINE = "was there before the attach, or appeared without being reported"
    ALLOCATOR = "mapped inside malloc: the heap's, which counts it by blocks"
    RESERVED = "mapped without access: addresses, but no memory"
    DISCARDED = "committed once, then given back to the kernel with its addresses kept"
    UNRECORDED = "came when the map was full"


Owner: TypeAlias = SiteKey | Special


@dataclass(frozen=True, slots=True)
class LiveRegion:
    """A part of a live region; parts of the same region have the same birth and thread."""

    start: int
    length_bytes: int
    born_ns: int
    tid: int


@dataclass(slots=True)
class _Totals:
    """Of one owner, in the order of COUNTERS."""

    live_bytes: int = 0
    live_count: int = 0
    allocated_bytes: int = 0
    allocated_count: int = 0


@dataclass(slots=True, eq=False)
class _Region:
    """What one call gave to an owner; of a special owner there is only one."""

    owner: Owner
    totals: _Totals
    born_ns: int = 0
    tid: int = 0
    live_bytes: int = 0

    def gain(self, size_bytes: int) -> None:
        self.totals.live_count += not self.live_bytes
        self.live_bytes += size_bytes
        self.totals.live_bytes += size_bytes

    def lose(self, size_bytes: int) -> None:
        self.live_bytes -= size_bytes
        self.totals.live_bytes -= size_bytes
        self.totals.live_count -= not self.live_bytes


@dataclass(slots=True)
class _Taken:
    """What a thread's mremap or munmap is about; `reused` is what others did there meanwhile."""

    start: int
    end: int
    pieces: list[Piece[_Region]]
    reused: list[tuple[int, int]] = field(default_factory=list)


class AddressMap:
    """The map of a process with `mappings` (/proc/PID/maps) at the attach."""

    def __init__(self, mappings: Iterable[Mapping] = (), *, intervals_max: int = _INTERVALS_MAX) -> None:
        self.unrecorded_count = 0
        self._intervals_max = intervals_max
        self._totals: dict[Owner, _Totals] = {special: _Totals() for special in Special}
        self._special = {special: _Region(special, self._totals[special]) for special in Special}
        self._taken: dict[int, _Taken] = {}
        self._map: Intervals[_Region] = Intervals()
        self.resynchronise(tuple(mappings))

    def __len__(self) -> int:
        return len(self._map)

    # What the process does

    def mapped(
        self, start: int, length: int, owner: Owner, time_ns: int, tid: int, page_bytes: int = _PAGE_BYTES
    ) -> None:
        """mmap gave a range to `owner`. `page_bytes` is for MAP_HUGETLB."""
        start, end = _whole_pages(start, length, page_bytes)
        self._release(start, end)
        if start < end:
            region = self._new_region(owner, end - start, time_ns, tid)
            self._map.replace(start, end, [(start, end, region)])

    def unmapped(self, start: int, length: int) -> None:
        """munmap of a range: any part of any mappings, and of none."""
        start, end = _whole_pages(start, length)
        self._release(start, end)
        self._map.replace(start, end, [])

    def take(self, tid: int, start: int, length: int) -> None:
        """mremap or munmap is called on a range; `put`, `put_back` or `let_go` follows."""
        self.put_back(tid)  # the result of the thread's last call was lost
        start, end = _whole_pages(start, length)
        self._note_reuse(start, end)
        self._taken[tid] = _Taken(start, end, self._map.overlapping(start, end))
        self._map.replace(start, end, [])

    def put_back(self, tid: int) -> None:
        """The call failed: its range is as it was, but for what others did there meanwhile."""
        taken = self._taken.pop(tid, None)
        if taken is None:
            return
        pieces = taken.pieces
        for start, end in taken.reused:
            pieces = without(pieces, start, end)
        _lose(taken.pieces)
        for start, end, region in pieces:
            region.gain(end - start)
            self._map.replace(start, end, [(start, end, region)])

    def let_go(self, tid: int) -> None:
        """munmap succeeded."""
        taken = self._taken.pop(tid, None)
        if taken is not None:
            _lose(taken.pieces)

    def put(
        self, tid: int, start: int, length: int, owner: Owner, time_ns: int, *, keep_old: bool = False
    ) -> None:
        """mremap succeeded, its range is now here; `owner` gets what is new. `keep_old`: MREMAP_DONTUNMAP.

        Where the call was not seen, nothing is known of the bytes that it moved: they are BASELINE.
        """
        if tid not in self._taken:
            self.mapped(start, length, Special.BASELINE, time_ns, tid)
            return
        if keep_old:
            self.put_back(tid)
            self.mapped(start, length, owner, time_ns, tid)
            return
        taken = self._taken.pop(tid)
        start, end = _whole_pages(start, length)
        shift = start - taken.start
        kept_end = min(taken.end, end - shift)
        _lose(without(taken.pieces, taken.start, kept_end))
        pieces = [
            (old_start + shift, min(old_end, kept_end) + shift, region)
            for old_start, old_end, region in taken.pieces
            if old_start < kept_end
        ]
        self._release(start, end)
        if kept_end + shift < end:
            owner = _owner_of_growth(pieces[-1][2].owner if pieces else None, owner)
            region = self._new_region(owner, end - kept_end - shift, time_ns, tid)
            pieces.append((kept_end + shift, end, region))
        self._map.replace(start, end, pieces)

    def protected(
        self, start: int, length: int, accessible: bool, owner: Owner, time_ns: int, tid: int
    ) -> None:
        """mprotect of a range; `owner` is who commits it if it becomes accessible."""
        start, end = _whole_pages(start, length)
        if accessible:
            unused = (Special.RESERVED, Special.DISCARDED)
            changing = [p for p in self._map.overlapping(start, end) if p[2].owner in unused]
            if changing:
                size_bytes = sum(piece[1] - piece[0] for piece in changing)
                self._hand_over(changing, self._new_region(owner, size_bytes, time_ns, tid), gained=True)
        else:
            kept = (Special.RESERVED, Special.ALLOCATOR)
            changing = [p for p in self._map.overlapping(start, end) if p[2].owner not in kept]
            self._hand_over(changing, self._special[Special.RESERVED])

    def discarded(self, start: int, length: int) -> None:
        """madvise dropped the contents of a range (DONTNEED, FREE, REMOVE)."""
        parts = self._map.overlapping(*_whole_pages(start, length))
        committed = [piece for piece in parts if _kind(piece[2].owner) is AllocationKind.COMMIT]
        self._hand_over(committed, self._special[Special.DISCARDED])

    def program_break(self, old: int, new: int, owner: Owner, time_ns: int, tid: int) -> None:
        """brk moved the end of the data segment."""
        old_end, new_end = _whole_pages(0, old)[1], _whole_pages(0, new)[1]
        if new_end > old_end:
            self.mapped(old_end, new_end - old_end, owner, time_ns, tid)
        else:
            self.unmapped(new_end, old_end - new_end)

    def resynchronise(self, mappings: Sequence[Mapping]) -> int:
        """Agree with /proc/PID/maps, after reports were lost; returns how many bytes did not.

        What is gone goes, what is new is BASELINE (or RESERVED). Calls under way count as failed.
        """
        for tid in list(self._taken):
            self.put_back(tid)
        known = self._map
        pieces: list[Piece[_Region]] = []
        differing_bytes = covered_to = 0
        for mapping in mappings:
            if mapping.path == "[vsyscall]":  # the kernel's own page, which cannot be unmapped
                continue
            differing_bytes += _lose(known.overlapping(covered_to, mapping.start))
            covered_to = mapping.end
            for start, end, region in _with_gaps(known.overlapping(mapping.start, mapping.end), mapping):
                agreed = self._agreed(region, mapping)
                if agreed is not region:
                    differing_bytes += end - start
                    if region is not None:
                        region.lose(end - start)
                    agreed.gain(end - start)
                pieces.append((start, end, agreed))
        differing_bytes += _lose(known.overlapping(covered_to, 1 << 64))
        self._map = Intervals(pieces)
        return differing_bytes

    # What there is

    def owner_at(self, address: int) -> Owner | None:
        """Whose an address is; None where nothing is mapped."""
        region = self._map.at(address)
        return region.owner if region else None

    def ranges(self) -> Iterator[tuple[int, int, Owner]]:
        """All of the address space: start, end and owner, by address; not what is being moved."""
        return ((start, end, region.owner) for start, end, region in self._map)

    def totals(self, owner: Owner) -> SiteCounters:
        """The counters of an owner; zeroes for one never seen. A special one has no use but for its bytes."""
        totals = self._totals.get(owner, _Totals())
        return SiteCounters(*_row(totals))

    def counters(self) -> tuple[list[SiteKey], NDArray[np.int64]]:
        """All call sites so far and their counters, for SiteTable.update."""
        sites = [owner for owner in self._totals if isinstance(owner, SiteKey)]
        rows = [_row(self._totals[site]) for site in sites]
        return sites, np.array(rows, np.int64).reshape(len(sites), len(COUNTERS))

    def regions(self, site: SiteKey) -> list[LiveRegion]:
        """What of a site is live, by address."""
        return [
            LiveRegion(start, end - start, region.born_ns, region.tid)
            for start, end, region in self._map
            if region.owner == site
        ]

    def census(self) -> dict[SiteKey, SiteCensus]:
        """For each site with live regions: the oldest one's birth, and live bytes by thread."""
        sites: dict[SiteKey, SiteCensus] = {}
        for start, end, region in self._live_pieces():
            if isinstance(region.owner, SiteKey):
                site = sites.setdefault(region.owner, SiteCensus(region.born_ns))
                site.oldest_born_ns = min(site.oldest_born_ns, region.born_ns)
                by_tid = site.live_bytes_by_tid
                by_tid[region.tid] = by_tid.get(region.tid, 0) + end - start
        return sites

    # Inside

    def _live_pieces(self) -> Iterator[Piece[_Region]]:
        yield from self._map
        for taken in self._taken.values():
            yield from taken.pieces

    def _new_region(self, owner: Owner, size_bytes: int, time_ns: int, tid: int) -> _Region:
        if isinstance(owner, SiteKey) and len(self._map) >= self._intervals_max:
            self.unrecorded_count += 1
            owner = Special.UNRECORDED
        if isinstance(owner, Special):
            region = self._special[owner]
        else:
            region = _Region(owner, self._totals.setdefault(owner, _Totals()), time_ns, tid)
        region.totals.allocated_bytes += size_bytes
        region.totals.allocated_count += 1
        region.gain(size_bytes)
        return region

    def _release(self, start: int, end: int) -> None:
        """Whatever was in a range has gone; the map itself is left to the caller."""
        self._note_reuse(start, end)
        _lose(self._map.overlapping(start, end))

    def _note_reuse(self, start: int, end: int) -> None:
        for taken in self._taken.values():
            if start < taken.end and end > taken.start:
                taken.reused.append((start, end))

    def _hand_over(self, pieces: list[Piece[_Region]], region: _Region, *, gained: bool = False) -> None:
        size_bytes = _lose(pieces)
        if not gained and pieces:
            region.gain(size_bytes)
        for start, end, _before in pieces:
            self._map.replace(start, end, [(start, end, region)])

    def _agreed(self, region: _Region | None, mapping: Mapping) -> _Region:
        """Whose a part of a mapping is, given whose the map says it is."""
        accessible = mapping.readable or mapping.writable or mapping.executable
        if region is None or (region.owner is Special.RESERVED and accessible):
            return self._special[Special.BASELINE if accessible else Special.RESERVED]
        # A guard page is part of the stack that was mapped with it.
        stays = (Special.ALLOCATOR, Special.UNRECORDED)
        if accessible or region.owner in stays or _kind(region.owner) is AllocationKind.THREAD_STACK:
            return region
        return self._special[Special.RESERVED]


def _whole_pages(start: int, length: int, page_bytes: int = _PAGE_BYTES) -> tuple[int, int]:
    start &= -page_bytes
    return start, start + (length + page_bytes - 1 & -page_bytes)


def _lose(pieces: Iterable[Piece[_Region]]) -> int:
    """Count these bytes as gone; returns how many they are."""
    size_bytes = 0
    for start, end, region in pieces:
        region.lose(end - start)
        size_bytes += end - start
    return size_bytes


def _owner_of_growth(old: Owner | None, caller: Owner) -> Owner:
    """Whose the bytes are that mremap adds to what was `old`'s: memory of the same kind."""
    if old is Special.ALLOCATOR:
        return old
    if old in (Special.RESERVED, Special.DISCARDED):
        return Special.RESERVED
    if isinstance(caller, SiteKey) and _kind(old) in (AllocationKind.FILE, AllocationKind.THREAD_STACK):
        return SiteKey(_kind(old), caller.stack_id)
    return caller


def _with_gaps(pieces: list[Piece[_Region]], mapping: Mapping) -> Iterator[Piece[_Region | None]]:
    """All of a mapping: the pieces in it, and None for what is between them."""
    covered_to = mapping.start
    for start, end, region in pieces:
        if covered_to < start:
            yield covered_to, start, None
        yield start, end, region
        covered_to = end
    if covered_to < mapping.end:
        yield covered_to, mapping.end, None


def _kind(owner: Owner | None) -> AllocationKind | None:
    return owner.kind if isinstance(owner, SiteKey) else None


def _row(totals: _Totals) -> tuple[int, int, int, int]:
    return totals.live_bytes, totals.live_count, totals.allocated_bytes, totals.allocated_count
