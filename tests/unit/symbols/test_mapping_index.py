"""Mappings by address, with numbers that tell whether one is still the same."""

from __future__ import annotations

from msgspec.structs import replace

from bpfleakd.model.code.mapping import LoadedCode, Mapping
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


CSV = Mapping(0x9000, 0xA000, 0x1000, "08:01", 31, "/lib/csv.so", True, False, True)
XML = replace(CSV, inode=32, path="/lib/xml.so")
NUMBER = 7
NUMBERED = NUMBER << 47


def paths_at(space: MappingIndex, *words: int) -> list[str | None]:
    return [region and region.mapping.path for region in map(space.find, words)]


class TestCodeThatComesAndGoes:
    """A word of a stack says which code an address was of."""

    def test_code_that_is_gone(self) -> None:
        """The first code at an address keeps its frames, whether it is from before the attach or not."""
        space = MappingIndex()
        space.update([CODE])
        space.note_loaded([LoadedCode(1, CSV, was_unnumbered=True)])
        assert paths_at(space, 0x9100, 0x1100) == ["/lib/csv.so", "/bin/shop"]
        space.update([HEAP])
        assert paths_at(space, 0x9100, 0x1100) == ["/lib/csv.so", "/bin/shop"]

    def test_two_files_in_turns(self) -> None:
        """Words with a number belong to the later file, also after the first one is mapped again."""
        space = MappingIndex()
        space.update([CODE, CSV])
        space.update([CODE, XML])
        space.note_loaded([LoadedCode(NUMBER, XML), LoadedCode(NUMBER + 1, CSV)])
        words = 0x9100, NUMBERED | 0x9100, (NUMBER + 1) << 47 | 0x9100
        assert paths_at(space, *words) == ["/lib/csv.so", "/lib/xml.so", "/lib/csv.so"]
        space.update([CODE])
        assert paths_at(space, *words) == ["/lib/csv.so", "/lib/xml.so", "/lib/csv.so"]

    def test_a_number_that_nobody_has(self) -> None:
        """Code without room has no name; it never gets the name of the current code."""
        space = MappingIndex()
        space.update([CODE, CSV])
        assert paths_at(space, NUMBERED | 0x9100) == [None]

    def test_first_code_that_was_never_seen(self) -> None:
        """It was unmapped while no daemon ran: its stacks do not get the names of the current code."""
        space = MappingIndex()
        space.update([CODE, XML])
        space.note_loaded([LoadedCode(NUMBER, XML)])
        assert paths_at(space, 0x9100, NUMBERED | 0x9100) == [None, "/lib/xml.so"]

    def test_code_that_nobody_noted(self) -> None:
        """It may be the first at its addresses or not: its own frames are right at least."""
        space = MappingIndex()
        space.update([CODE, CSV])
        space.update([CODE, XML])
        assert paths_at(space, 0x9100) == ["/lib/xml.so"]

    def test_code_without_a_file_in_place_of_a_file(self) -> None:
        """A JIT has the addresses now: a stack of its has a number, one of the file has none."""
        jit = replace(CSV, device="00:00", inode=0, path="")
        space = MappingIndex()
        space.update([CODE, CSV])
        space.update([CODE, jit])
        space.note_loaded([LoadedCode(NUMBER, jit)])
        assert paths_at(space, 0x9100, NUMBERED | 0x9100) == ["/lib/csv.so", ""]

    def test_ranges_that_the_programs_forgot(self) -> None:
        """Two files were both the first at an address: the later one is assumed."""
        space = MappingIndex()
        space.update([CODE])
        space.note_loaded([LoadedCode(1, CSV, was_unnumbered=True)])
        space.note_loaded([LoadedCode(2, XML, was_unnumbered=True)])
        assert paths_at(space, 0x9100) == ["/lib/xml.so"]
