"""Mappings by address, with numbers that tell whether one is still the same."""

from __future__ import annotations

from msgspec.structs import replace

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.symbols.mapping_index import MappingIndex

CODE = Mapping(0x1000, 0x3000, 0, "08:01", 23, "/bin/shop", True, False, True)
HEAP = Mapping(0x5000, 0x6000, 0, "00:00", 0, "[heap]", True, True, False)


def number_at(space: MappingIndex, address: int) -> int:
    region = space.find(address)
    assert region is not None
    return region.number


def test_mapping_around_an_address() -> None:
    """The start is inside, the end is not, and between mappings there is nothing."""
    space = MappingIndex()
    assert space.find(0x1000) is None
    space.update([HEAP, CODE])
    found = [space.find(a) for a in (-1, 0xFFF, 0x1000, 0x2FFF, 0x3000, 0x5000, 0x6000)]
    assert [region and region.mapping for region in found] == [None, None, CODE, CODE, None, HEAP, None]


def test_unchanged_mappings_keep_their_numbers() -> None:
    """Reading the same mappings again changes nothing; another mapping at an address has another number."""
    space = MappingIndex()
    space.update([CODE, HEAP])
    code, heap = number_at(space, 0x1000), number_at(space, 0x5000)
    space.update([CODE, replace(HEAP, end=0x7000)])
    assert number_at(space, 0x1000) == code
    assert number_at(space, 0x5000) != heap
    space.update([replace(CODE, inode=24)])
    assert number_at(space, 0x1000) not in (code, heap)
    assert space.find(0x5000) is None
