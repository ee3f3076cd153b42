"""The mappings of one process, to find the one around an address."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Struct

from bpfleakd.model.code.mapping import Mapping

__all__ = ["IndexedMapping", "MappingIndex"]


class IndexedMapping(Struct, frozen=True, eq=False):
    """A mapping with a number that no other mapping of this process had or will have.

    Compared by identity, which is quicker than by what is in it.
    """

    number: int
    mapping: Mapping


class MappingIndex:
    """The mappings as they were read last. One that did not change since keeps its number."""

    def __init__(self) -> None:
        self._regions: list[IndexedMapping] = []
        self._starts: list[int] = []
        self._count = 0

    def update(self, mappings: Sequence[Mapping]) -> None:
        """Replace all mappings."""
        numbers = {region.mapping: region.number for region in self._regions}
        regions = []
        for mapping in sorted(mappings, key=lambda mapping: mapping.start):
            number = numbers.get(mapping)
            if number is None:
                self._count += 1
                number = self._count
            regions.append(IndexedMapping(number, mapping))
        self._regions = regions
        self._starts = [region.mapping.start for region in regions]

    @property
    def mappings(self) -> list[Mapping]:
        """All mappings, by address."""
        return [region.mapping for region in self._regions]

    def find(self, address: int) -> IndexedMapping | None:
        """Return the region around an address."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._regions[index].mapping.end:
            return None
        return self._regions[index]
