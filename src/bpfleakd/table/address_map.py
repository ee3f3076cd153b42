"""The address space of one traced process: which call sites mapped which parts, and what remains of them.

Rules:
  - Every byte has at most one owner: a call site (SiteKey) or one of `Special`. Operations come in the order
    in which the kernel side reports them, with the arguments of calls that succeeded.
  - Addresses are rounded down to pages and lengths up, as the kernel does.
  - A new mapping replaces older ones (MAP_FIXED). A mapping without access becomes RESERVED, unless it is a
    stack (including its guard) or the allocator's.
  - mprotect gives RESERVED and DISCARDED parts to the call site that makes them accessible, and makes parts
    RESERVED if it removes the access. Parts that were accessible before keep their owner, and so do parts of
    ALLOCATOR.
  - madvise that drops contents makes committed parts DISCARDED, nothing else. If a program then uses them
    again without mprotect (Go does), bpfleakd does not notice.
  - mremap moves bytes with their owner; only added bytes belong to the call. The old range is removed from
    the map at the call and counts as live until the result is known: once the kernel has moved it, another
    thread may get that range before the call has returned. munmap may be reported in the same way.
  - A region is the memory that one call gave to an owner. It counts as one region, in however many parts,
    until its last byte is gone, and has one time and thread. Live figures fall, allocated ones never do.
    Where mremap moves very many, neighbours of about the same age become one that stands for them.
  - A full map counts new regions as UNRECORDED, and keeps only their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.site import AllocationKind, SiteCounters, SiteKey
from bpfleakd.table.census import SiteCensus
from bpfleakd.table.intervals import Intervals, Piece, without
from bpfleakd.table.map_checkpoint import MapCheckpoint, Regions, TakenCheckpoint, of_owner, owner_of
from bpfleakd.table.regions import (
    UNUSED,
    LiveRegion,
    Owner,
    Region,
    Special,
    Totals,
    count_in,
    count_out,
    joined_by_age,
    kind_of,
    owner_of_growth,
)
from bpfleakd.table.site_table import COUNTERS

_PAGE_BYTES = 4096
# An interval takes about 250 bytes. The kernel merges mappings that are separate here, so its limit
# (vm.max_map_count) does not bound the map.
_INTERVALS_MAX = 1_000_000
# mremap takes some microseconds for each piece, so it joins those of about the same age if it moves more. A
# vector that grew a hundred times a second for five minutes then has some 800.
_PIECES_MANY = 2_000

# Mappings are not estimates: their variances, the last counters, are 0.
_COUNTED = COUNTERS[: COUNTERS.index("live_bytes_variance")]
_counters_of = attrgetter(*_COUNTED)


class _Taken(Struct):
    """The range of a thread's mremap or munmap; `reused` is what other threads did in it meanwhile.

    `last` is the owner of its last bytes, or of those behind an empty range.
    """

    start: int
    end: int
    pieces: list[Piece[Region]]
    last: Owner | None
    reused: list[tuple[int, int]] = msgspec.field(default_factory=list)


class AddressMap:
    """The map of a process with `mappings` (/proc/PID/maps) at the attach.

    `unrecorded_count` is the number of regions that came while the map had `intervals_max` intervals.
    """

    def __init__(self, mappings: Sequence[Mapping] = (), *, intervals_max: int = _INTERVALS_MAX) -> None:
        self.unrecorded_count = 0
        self._intervals_max = intervals_max
        self._totals: dict[Owner, Totals] = {special: Totals() for special in Special}
        # All call sites but those of files, whose memory the kernel can reclaim.
        self._all_live = Totals()
        self._special = {special: Region(special, self._totals[special]) for special in Special}
        self._taken: dict[int, _Taken] = {}
        self._map: Intervals[Region] = Intervals()
        self.resynchronise(mappings)

    def __len__(self) -> int:
        return len(self._map)

    # What the process does.

    def mapped(
        self, start: int, length: int, owner: Owner, time_ns: int, tid: int, page_bytes: int = _PAGE_BYTES
    ) -> None:
        """Record that mmap gave a range to `owner`. `page_bytes` is for MAP_HUGETLB."""
        start, end = _whole_pages(start, length, page_bytes)
        if start < end:
            region = self._new_region(owner, end - start, time_ns, tid)
            self._place(start, end, [(start, end, region)])

    def unmapped(self, start: int, length: int) -> None:
        """Record that munmap removed a range: any parts of any mappings, or nothing."""
        self._place(*_whole_pages(start, length), [])

    def take(self, tid: int, start: int, length: int) -> None:
        """Record that a thread calls mremap or munmap on a range; `put`, `put_back` or `release` follows."""
        self.put_back(tid)  # of the thread's previous call, if its result was lost
        start, end = _whole_pages(start, length)
        self._note_reuse(start, end)
        last = self.owner_at(max(start, end - 1))
        self._taken[tid] = _Taken(start, end, self._map.overlapping(start, end), last)
        self._map.replace(start, end, [])

    def put_back(self, tid: int) -> None:
        """Restore the range, but for what others did in it: the call failed, or the thread ended."""
        taken = self._taken.pop(tid, None)
        if taken is not None:
            pieces = taken.pieces
            if taken.reused:
                count_out(pieces)
                for start, end in taken.reused:
                    pieces = without(pieces, start, end)
                count_in(pieces)
            self._place_again(pieces)

    def release(self, tid: int) -> None:
        """Record that the thread's munmap succeeded."""
        taken = self._taken.pop(tid, None)
        if taken is not None:
            count_out(taken.pieces)

    def put(
        self, tid: int, start: int, length: int, owner: Owner, time_ns: int, *, keep_old: bool = False
    ) -> None:
        """Record that mremap succeeded and moved its range here; `owner` gets the added bytes.

        `keep_old` is MREMAP_DONTUNMAP. If the call was missed, the owners of the moved bytes are unknown:
        they become BASELINE.
        """
        taken = self._taken.get(tid)
        if taken is None:
            self.mapped(start, length, Special.BASELINE, time_ns, tid)
            return
        owner = owner_of_growth(taken.last, owner)
        if keep_old:
            self.put_back(tid)
            self.mapped(start, length, owner, time_ns, tid)
            return
        del self._taken[tid]
        start, end = _whole_pages(start, length)
        shift = start - taken.start
        moved_end = min(taken.end + shift, end)
        pieces = taken.pieces
        if moved_end < taken.end + shift:
            cut_off = moved_end - shift
            count_out(without(pieces, taken.start, cut_off))
            pieces = without(pieces, cut_off, taken.end)
        if shift:
            pieces = [(old_start + shift, old_end + shift, one) for old_start, old_end, one in pieces]
        if len(pieces) > _PIECES_MANY:
            pieces = joined_by_age(pieces, time_ns)
        self._place_again(pieces)
        if moved_end < end:
            grown = self._new_region(owner, end - moved_end, time_ns, tid)
            self._place(moved_end, end, [(moved_end, end, grown)])

    def protected(
        self, start: int, length: int, accessible: bool, owner: Owner, time_ns: int, tid: int
    ) -> None:
        """Record mprotect of a range; `owner` commits it if it becomes accessible."""
        start, end = _whole_pages(start, length)
        parts = self._map.overlapping(start, end)
        if accessible:
            changing = [region.owner in UNUSED for _start, _end, region in parts]
            size_bytes = sum(
                part[1] - part[0] for part, changes in zip(parts, changing, strict=True) if changes
            )
            if size_bytes:
                self._hand_over(parts, changing, self._new_region(owner, size_bytes, time_ns, tid))
        else:
            kept = (Special.RESERVED, Special.ALLOCATOR)
            changing = [region.owner not in kept for _start, _end, region in parts]
            self._hand_over(parts, changing, self._special[Special.RESERVED])

    def discarded(self, start: int, length: int) -> None:
        """Record that madvise dropped the contents of a range (DONTNEED, FREE, REMOVE)."""
        parts = self._map.overlapping(*_whole_pages(start, length))
        committed = [kind_of(region.owner) is AllocationKind.COMMIT for _start, _end, region in parts]
        self._hand_over(parts, committed, self._special[Special.DISCARDED])

    def program_break(self, old: int, new: int, owner: Owner, time_ns: int, tid: int) -> None:
        """Record that brk moved the end of the data segment."""
        old_end, new_end = _whole_pages(0, old)[1], _whole_pages(0, new)[1]
        if new_end > old_end:
            self.mapped(old_end, new_end - old_end, owner, time_ns, tid)
        else:
            self.unmapped(new_end, old_end - new_end)

    def resynchronise(self, mappings: Sequence[Mapping]) -> int:
        """Make the map agree with /proc/PID/maps after lost reports; returns how many bytes differed.

        Missing mappings are removed, new ones become BASELINE (or RESERVED). Unfinished calls count as
        failed.
        """
        for tid in list(self._taken):
            self.put_back(tid)
        pieces: list[Piece[Region]] = []
        differing_bytes = covered_to = 0
        for mapping in mappings:
            # A mapping that changed during the read may overlap the one before. [vsyscall] belongs to the
            # kernel.
            begin = max(mapping.start, covered_to)
            if begin >= mapping.end or mapping.path == "[vsyscall]":
                continue
            differing_bytes += count_out(self._map.overlapping(covered_to, begin))
            covered_to = mapping.end
            for start, end, region in _with_gaps(self._map.overlapping(begin, covered_to), begin, covered_to):
                agreed = self._agreed(region, mapping)
                if agreed is not region:
                    differing_bytes += end - start
                    if region is not None:
                        region.lose(end - start)
                    agreed.gain(end - start)
                pieces.append((start, end, agreed))
        differing_bytes += count_out(self._map.overlapping(covered_to, 1 << 64))
        self._map = Intervals(pieces)
        return differing_bytes

    # What outlives the daemon.

    def checkpoint(self) -> MapCheckpoint:
        """The whole map in plain numbers, for `restored`."""
        regions = Regions()
        pieces = [regions.piece(piece) for piece in self._map]
        taken = [
            TakenCheckpoint(
                tid,
                one.start,
                one.end,
                [regions.piece(piece) for piece in one.pieces],
                None if one.last is None else of_owner(one.last),
                one.reused,
            )
            for tid, one in self._taken.items()
        ]
        totals = [(of_owner(owner), _counters_of(totals)) for owner, totals in self._totals.items()]
        all_live = _counters_of(self._all_live)
        return MapCheckpoint(pieces, regions.rows, totals, all_live, taken, self.unrecorded_count)

    @classmethod
    def restored(cls, checkpoint: MapCheckpoint) -> AddressMap:
        """The map of a checkpoint. Raises ValueError if the checkpoint is inconsistent."""
        space = cls()
        space.unrecorded_count = checkpoint.unrecorded_count
        space._all_live = Totals(*checkpoint.all_live)
        for row, counters in checkpoint.totals:
            owner = owner_of(row)
            counted = kind_of(owner) not in (None, AllocationKind.FILE)
            space._totals[owner] = Totals(*counters, part_of=space._all_live if counted else None)
        regions: list[Region] = []
        for row, born_ns, tid, live_bytes, count in checkpoint.regions:
            owner = owner_of(row)
            regions.append(Region(owner, space._totals[owner], born_ns, tid, live_bytes, count))
        # A special owner has exactly one region, which may be empty.
        space._special = {special: Region(special, space._totals[special]) for special in Special}
        space._special |= {region.owner: region for region in regions if isinstance(region.owner, Special)}
        space._map = Intervals((start, end, regions[number]) for start, end, number in checkpoint.pieces)
        for one in checkpoint.taken:
            pieces = [(start, end, regions[number]) for start, end, number in one.pieces]
            last = None if one.last is None else owner_of(one.last)
            space._taken[one.tid] = _Taken(one.start, one.end, pieces, last, list(one.reused))
        return space

    # What the map contains.

    def owner_at(self, address: int) -> Owner | None:
        """The owner of an address; None if nothing is mapped there."""
        region = self._map.at(address)
        return region.owner if region else None

    def ranges(self) -> Iterator[tuple[int, int, Owner]]:
        """Yield all of the address space by address: start, end, owner; without what is being moved."""
        return ((start, end, region.owner) for start, end, region in self._map)

    @property
    def live_bytes(self) -> int:
        """The live bytes of all call sites but those of files."""
        return self._all_live.live_bytes

    def totals(self, owner: Owner) -> SiteCounters:
        """The counters of an owner, zeroes for an unknown one; a special owner only has bytes."""
        return self._totals.get(owner, Totals()).values()

    def counters(self) -> tuple[list[SiteKey], NDArray[np.int64]]:
        """All call sites so far and their counters, as arguments of SiteTable.update."""
        sites = [owner for owner in self._totals if isinstance(owner, SiteKey)]
        counters = np.zeros((len(sites), len(COUNTERS)), np.int64)
        rows = [_counters_of(self._totals[site]) for site in sites]
        counters[:, : len(_COUNTED)] = np.array(rows, np.int64).reshape(len(sites), len(_COUNTED))
        return sites, counters

    def regions(self, site: SiteKey) -> list[LiveRegion]:
        """The live regions of a site, by address."""
        return [region for owner, region in self.live_regions() if owner == site]

    def live_regions(self) -> list[tuple[SiteKey, LiveRegion]]:
        """The live regions of all sites, by address."""
        return [
            (region.owner, region.part(start, end))
            for start, end, region in sorted(self._live_pieces(), key=lambda piece: piece[0])
            if isinstance(region.owner, SiteKey)
        ]

    def census(self) -> dict[SiteKey, SiteCensus]:
        """For each site with live regions: the birth of the oldest, and live bytes and regions by thread."""
        sites: dict[SiteKey, SiteCensus] = {}
        counted: set[Region] = set()
        for start, end, region in self._live_pieces():
            if isinstance(region.owner, SiteKey):
                site = sites.setdefault(region.owner, SiteCensus(region.born_ns))
                site.oldest_born_ns = min(site.oldest_born_ns, region.born_ns)
                by_tid = site.live_bytes_by_tid
                by_tid[region.tid] = by_tid.get(region.tid, 0) + end - start
                if region not in counted:
                    counted.add(region)
                    site.live_count_by_tid[region.tid] = (
                        site.live_count_by_tid.get(region.tid, 0) + region.count
                    )
        return sites

    # Internals.

    def _live_pieces(self) -> Iterable[Piece[Region]]:
        yield from self._map
        for taken in self._taken.values():
            yield from taken.pieces

    def _new_region(self, owner: Owner, size_bytes: int, time_ns: int, tid: int) -> Region:
        """A region that counts as allocated and has no bytes in the map yet."""
        if isinstance(owner, SiteKey) and len(self._map) >= self._intervals_max:
            self.unrecorded_count += 1
            owner = Special.UNRECORDED
        if isinstance(owner, Special):
            return self._special[owner]
        totals = self._totals.get(owner)
        if totals is None:
            counted = None if owner.kind is AllocationKind.FILE else self._all_live
            totals = self._totals[owner] = Totals(part_of=counted)
        totals.allocated_bytes += size_bytes
        totals.allocated_count += 1
        return Region(owner, totals, time_ns, tid)

    def _place(self, start: int, end: int, pieces: list[Piece[Region]]) -> None:
        """Put `pieces` into the map, in place of any other mapping."""
        if self._taken:
            self._note_reuse(start, end)
        count_out(self._map.overlapping(start, end))
        for piece_start, piece_end, region in pieces:
            region.gain(piece_end - piece_start)
        self._map.replace(start, end, pieces)

    def _place_again(self, pieces: list[Piece[Region]]) -> None:
        """Put pieces back, in order, except those that their regions have lost.

        A gap keeps what was there (Linux 6.17 moves several mappings in a call). Pieces that touch are
        joined: a vector that grew by mremap ten thousand times has as many pieces, and moves again.
        """
        for run in _runs(pieces):
            start, end = run[0][0], run[-1][1]
            if self._taken:
                self._note_reuse(start, end)
            count_out(self._map.overlapping(start, end))
            self._map.replace(start, end, run)

    def _hand_over(self, parts: list[Piece[Region]], changing: list[bool], region: Region) -> None:
        """Give the `changing` ones of parts that are in the map to a region."""
        if not any(changing):
            return
        pieces = []
        for part, changes in zip(parts, changing, strict=True):
            if changes:
                part[2].lose(part[1] - part[0])
                region.gain(part[1] - part[0])
            pieces.append((part[0], part[1], region) if changes else part)
        self._map.replace(parts[0][0], parts[-1][1], pieces)

    def _note_reuse(self, start: int, end: int) -> None:
        for taken in self._taken.values():
            if start < taken.end and end > taken.start:
                taken.reused.append((start, end))

    def _agreed(self, region: Region | None, mapping: Mapping) -> Region:
        """The owner of a part of a mapping, given its owner in the map."""
        accessible = mapping.readable or mapping.writable or mapping.executable
        if region is None or (region.owner is Special.RESERVED and accessible):
            return self._special[Special.BASELINE if accessible else Special.RESERVED]
        stays = region.owner is Special.ALLOCATOR or kind_of(region.owner) is AllocationKind.THREAD_STACK
        return region if accessible or stays else self._special[Special.RESERVED]


def _whole_pages(start: int, length: int, page_bytes: int = _PAGE_BYTES) -> tuple[int, int]:
    start &= -page_bytes
    return start, start + (length + page_bytes - 1 & -page_bytes)


def _runs(pieces: list[Piece[Region]]) -> Iterator[list[Piece[Region]]]:
    """The pieces, in order, in runs of touching ones."""
    first = 0
    for index in range(1, len(pieces)):
        if pieces[index - 1][1] != pieces[index][0]:
            yield pieces[first:index]
            first = index
    if pieces:
        yield pieces[first:]


def _with_gaps(pieces: list[Piece[Region]], start: int, end: int) -> Iterator[Piece[Region | None]]:
    """The pieces from `start` to `end`, with None for the gaps between them."""
    for piece in pieces:
        if start < piece[0]:
            yield start, piece[0], None
        yield piece
        start = piece[1]
    if start < end:
        yield start, end, None
