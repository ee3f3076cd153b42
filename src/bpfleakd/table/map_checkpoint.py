"""An address map in plain numbers, to be stored and restored.

Regions are numbered, since two intervals may be parts of one; an owner is a pair of a name and a number.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.table.intervals import Piece
from bpfleakd.table.regions import Owner, Region, Special

# Name of an allocation kind or of a special owner, and the stack (0 for a special one).
SavedOwner: TypeAlias = tuple[str, int]
# Start, end and number of the region.
SavedPiece: TypeAlias = tuple[int, int, int]
# Owner, birth, thread, live bytes and calls.
SavedRegion: TypeAlias = tuple[SavedOwner, int, int, int, int]
# Columns COUNTERS of site_table.py.
SavedCounters: TypeAlias = tuple[int, int, int, int, int, int]


class TakenCheckpoint(Struct, frozen=True):
    """The range of an unfinished call of thread `tid`."""

    tid: int
    start: int
    end: int
    pieces: list[SavedPiece]
    last: SavedOwner | None
    reused: list[tuple[int, int]]


class MapCheckpoint(Struct, frozen=True):
    """`regions` are owner, birth, thread and live bytes, by number; `totals` includes all former owners."""

    pieces: list[SavedPiece]
    regions: list[SavedRegion]
    totals: list[tuple[SavedOwner, SavedCounters]]
    all_live: SavedCounters
    taken: list[TakenCheckpoint]
    unrecorded_count: int


class Regions(Struct):
    """Numbers regions; `rows` are those of MapCheckpoint."""

    rows: list[SavedRegion] = msgspec.field(default_factory=list)
    _numbers: dict[int, int] = msgspec.field(default_factory=dict)

    def piece(self, piece: Piece[Region]) -> SavedPiece:
        """The piece with its region's number."""
        start, end, region = piece
        number = self._numbers.get(id(region))
        if number is None:
            number = self._numbers[id(region)] = len(self.rows)
            self.rows.append(
                (of_owner(region.owner), region.born_ns, region.tid, region.live_bytes, region.count)
            )
        return start, end, number


def of_owner(owner: Owner) -> SavedOwner:
    """An owner as name and number."""
    return (owner.name, 0) if isinstance(owner, Special) else (owner.kind.value, owner.stack_id)


def owner_of(checkpoint: SavedOwner) -> Owner:
    """Restore the owner. Raises ValueError if it is unknown."""
    name, stack_id = checkpoint
    if name in Special.__members__:
        return Special[name]
    return SiteKey(AllocationKind(name), stack_id)
