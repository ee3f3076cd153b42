"""The mappings of one process, searched by the words of stacks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from bpfleakd.model.code.mapping import LoadedCode, Mapping
from bpfleakd.model.code.stack_word import address_of, code_number

# The place where a file is mapped: start, offset, inode, device.
_Place: TypeAlias = tuple[int, int, int, str]

# Maximum of unloaded code mappings, per process.
_GONE_MAX = 4_096


class IndexedMapping(Struct, frozen=True, eq=False):
    """A mapping with a number that is unique in its process for ever.

    Compared by identity, which is faster than by content.
    """

    number: int
    mapping: Mapping


class MappingIndex:
    """The mappings as of the last reading. An unchanged one keeps its number.

    Stacks recorded in code that was unloaded still find it.
    """

    def __init__(self) -> None:
        self._regions: list[IndexedMapping] = []
        self._starts: list[int] = []
        self._count = 0
        self._loaded: dict[int, IndexedMapping] = {}
        self._loaded_places: set[_Place] = set()
        # The first code at its addresses: that of the attach, or loaded since.
        self._first: dict[_Place, IndexedMapping] = {}
        self._unmapped: list[IndexedMapping] = []

    def update(self, mappings: Sequence[Mapping]) -> None:
        """Replace all mappings."""
        numbers = {region.mapping: region.number for region in self._regions}
        for region in self._regions:
            if _is_code(region.mapping) and _place(region.mapping) not in self._loaded_places:
                self._first.setdefault(_place(region.mapping), region)
        regions = []
        for mapping in sorted(mappings, key=lambda mapping: mapping.start):
            regions.append(IndexedMapping(numbers.get(mapping) or self._next_number(), mapping))
        self._regions = regions
        self._starts = [region.mapping.start for region in regions]
        self._find_gone()

    def note_loaded(self, loaded: Iterable[LoadedCode]) -> list[Mapping]:
        """Add code that was mapped since the attach; called after the mappings were read.

        Returns the new mappings.
        """
        new: list[Mapping] = []
        for code in loaded:
            place, region = _place(code.mapping), self._loaded.get(code.number)
            if region is None:
                region = self._loaded[code.number] = IndexedMapping(self._next_number(), code.mapping)
                self._loaded_places.add(place)
                new.append(code.mapping)
            if code.was_unnumbered and self._first.get(place) is not region:
                # The programs remember a limited number of ranges: if both were the first, the later one
                # counts.
                first = self._first.items()
                self._first = {at: one for at, one in first if not _overlap(one.mapping, code.mapping)}
                self._first[place] = region
        self._find_gone()
        return new

    @property
    def mappings(self) -> list[Mapping]:
        """All mappings, by address."""
        return [region.mapping for region in self._regions]

    def find(self, word: int) -> IndexedMapping | None:
        """The region that contained an address when the stack with this word was recorded."""
        address, number = address_of(word), code_number(word)
        if number:
            region = self._loaded.get(number)
            if region is None or region.mapping.inode:
                return region
            now = self._now(address)
            return now if now and not now.mapping.inode else None
        now = self._now(address)
        place = _place(now.mapping) if now is not None and _is_code(now.mapping) else None
        if place is not None and place not in self._loaded_places:
            return now
        for region in self._unmapped:
            if region.mapping.start <= address < region.mapping.end:
                return region
        return now if place is None or place in self._first else None

    def is_mapped(self, region: IndexedMapping) -> bool:
        """Whether a region is still mapped, as far as known."""
        now = self._now(region.mapping.start)
        return now is not None and _place(now.mapping) == _place(region.mapping)

    def _now(self, address: int) -> IndexedMapping | None:
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._regions[index].mapping.end:
            return None
        return self._regions[index]

    def _find_gone(self) -> None:
        self._unmapped = [region for region in self._first.values() if not self.is_mapped(region)][
            -_GONE_MAX:
        ]

    def _next_number(self) -> int:
        self._count += 1
        return self._count


def _is_code(mapping: Mapping) -> bool:
    return mapping.executable and mapping.inode != 0


def _overlap(one: Mapping, other: Mapping) -> bool:
    return one.start < other.end and other.start < one.end


def _place(mapping: Mapping) -> _Place:
    return mapping.start, mapping.offset, mapping.inode, mapping.device
