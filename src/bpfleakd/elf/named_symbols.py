"""Symbols by name, of any type: the places and sizes of a file's variables."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.section import Section

# ELF-64 object file format, "Symbol Table": st_name, st_info, st_other, st_shndx, st_value, st_size.
SYMBOL_ROW = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)


class NamedSymbol(Struct, frozen=True):
    """The place of a symbol in the file's own addresses."""

    vaddr: int
    size_bytes: int


def find_symbols(
    image: ElfImage, names: Collection[str], sections: Sequence[str] = (".dynsym", ".symtab")
) -> dict[str, NamedSymbol]:
    """Return the defined symbols of these names, from the first section that has one. Raises `BadElf`."""
    found: dict[str, NamedSymbol] = {}
    for section_name in sections:
        missing = [name for name in names if name not in found]
        section = image.section(section_name)
        if missing and section is not None and section.has_bytes:
            found |= _found_in(image, section, missing)
    return found


def _found_in(image: ElfImage, section: Section, names: Collection[str]) -> dict[str, NamedSymbol]:
    if not 0 < section.header.link < len(image.sections):
        return {}
    strings = bytes(image.sections[section.header.link].data)
    data = section.data
    rows = np.frombuffer(data, SYMBOL_ROW, len(data) // SYMBOL_ROW.itemsize)
    rows = rows[rows["section"] != 0]
    found: dict[str, NamedSymbol] = {}
    for name in names:
        offsets = _offsets_of(strings, name.encode() + b"\0")
        matching = rows[np.isin(rows["name"], np.array(offsets, np.uint32))]
        if len(matching):
            found[name] = NamedSymbol(int(matching[0]["value"]), int(matching[0]["size"]))
    return found


def _offsets_of(strings: bytes, name: bytes) -> list[int]:
    """Linkers put a name into the end of a longer one, so it may begin anywhere."""
    offsets = []
    place = strings.find(name)
    while place >= 0:
        offsets.append(place)
        place = strings.find(name, place + 1)
    return offsets
