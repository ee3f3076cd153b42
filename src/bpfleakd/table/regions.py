"""Regions of an address space, their owners, and the owners' counters."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeAlias

from msgspec import Struct

from bpfleakd.model.site import AllocationKind, SiteCounters, SiteKey
from bpfleakd.table.intervals import Piece


class Special(Enum):
    """Owners other than call sites."""

    BASELINE = "was there before the attach, or appeared without being reported"
    ALLOCATOR = "mapped inside malloc: the heap's, which counts it by blocks"
    RESERVED = "without access: addresses, but no memory"
    DISCARDED = "committed once, then given back to the kernel with its addresses kept"
    UNRECORDED = "came when the map was full"


Owner: TypeAlias = SiteKey | Special

# Ages that differ by less than this share are about the same. What is joined may be joined again, so births
# are known within twice this share of the age: bins of time are wider (timeline.py).
_SAME_AGE = 1 / 128

# The owners whose parts mprotect commits.
UNUSED = (Special.RESERVED, Special.DISCARDED)


class Totals(Struct):
    """The counters of one owner. Live bytes also count in the totals that it is `part_of`.

    Memory that changes its owner is subtracted before it is added, so no peak is too high.
    """

    live_bytes: int = 0
    live_count: int = 0
    allocated_bytes: int = 0
    allocated_count: int = 0
    # Not known for mappings.
    temporary_count: int = 0
    peak_live_bytes: int = 0
    part_of: Totals | None = None

    def change_live(self, size_bytes: int) -> None:
        """Add live bytes, or subtract them if negative."""
        self.live_bytes += size_bytes
        self.peak_live_bytes = max(self.peak_live_bytes, self.live_bytes)
        if self.part_of is not None:
            self.part_of.change_live(size_bytes)

    def values(self) -> SiteCounters:
        """The current counters."""
        return SiteCounters(
            self.live_bytes,
            self.live_count,
            self.allocated_bytes,
            self.allocated_count,
            self.temporary_count,
            self.peak_live_bytes,
        )


class LiveRegion(Struct, frozen=True):
    """A part of a live region; parts of the same region have the same birth and thread.

    `count` is how many calls it represents.
    """

    start: int
    length_bytes: int
    born_ns: int
    tid: int
    count: int = 1


class Region(Struct, eq=False):
    """The memory that one call gave to an owner; a special owner has only one region.

    `count` is how many calls it represents: neighbours of about the same age may be joined.
    """

    owner: Owner
    totals: Totals
    born_ns: int = 0
    tid: int = 0
    live_bytes: int = 0
    count: int = 1

    def gain(self, size_bytes: int) -> None:
        """Add bytes to the region."""
        if not self.live_bytes:
            self.totals.live_count += self.count
        self.live_bytes += size_bytes
        self.totals.change_live(size_bytes)

    def lose(self, size_bytes: int) -> None:
        """Remove bytes from the region."""
        before_bytes = self.live_bytes
        self.live_bytes -= size_bytes
        self.totals.change_live(-size_bytes)
        if not self.live_bytes:
            self.totals.live_count -= self.count
        elif self.count > 1:
            # As many of the joined calls are left as of their bytes, rounded up.
            left = -(-self.count * self.live_bytes // before_bytes)
            self.totals.live_count -= self.count - left
            self.count = left

    def part(self, start: int, end: int) -> LiveRegion:
        """What of it lies between two addresses, at least one call."""
        count = max(1, self.count * (end - start) // self.live_bytes)
        return LiveRegion(start, end - start, self.born_ns, self.tid, count)

    def may_join(self, later: Region, now_ns: int) -> bool:
        """Whether a later region has the same owner and thread, and about the same age."""
        return (
            isinstance(self.owner, SiteKey)
            and self.totals is later.totals
            and self.tid == later.tid
            and 0 <= later.born_ns - self.born_ns <= _SAME_AGE * (now_ns - self.born_ns)
        )


def joined_by_age(pieces: Iterable[Piece[Region]], now_ns: int) -> list[Piece[Region]]:
    """The pieces, in order; neighbours of about the same age become one region.

    Bytes and calls are added; the later births are lost.
    """
    joined: list[Piece[Region]] = []
    for start, end, region in pieces:
        if joined:
            first, last, earlier = joined[-1]
            # A region with parts elsewhere stays as it is.
            whole = earlier.live_bytes == last - first and region.live_bytes == end - start
            if whole and last == start and earlier.may_join(region, now_ns):
                earlier.live_bytes += region.live_bytes
                earlier.count += region.count
                joined[-1] = (first, end, earlier)
                continue
        joined.append((start, end, region))
    return joined


def count_out(pieces: Iterable[Piece[Region]]) -> int:
    """Subtract pieces from their regions; returns how many bytes that are."""
    size_bytes = 0
    for start, end, region in pieces:
        region.lose(end - start)
        size_bytes += end - start
    return size_bytes


def count_in(pieces: Iterable[Piece[Region]]) -> None:
    """Add pieces to their regions."""
    for start, end, region in pieces:
        region.gain(end - start)


def kind_of(owner: Owner | None) -> AllocationKind | None:
    """The kind of a call site's memory; None for other owners."""
    return owner.kind if isinstance(owner, SiteKey) else None


def owner_of_growth(old: Owner | None, caller: Owner) -> Owner:
    """The owner of the bytes that mremap adds to memory of `old`: memory of the same kind."""
    if old in (Special.ALLOCATOR, Special.RESERVED):
        return old
    kind = kind_of(old)
    if kind in (AllocationKind.FILE, AllocationKind.THREAD_STACK) and isinstance(caller, SiteKey):
        return SiteKey(kind, caller.stack_id)
    return caller
