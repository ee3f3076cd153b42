"""Symbol sections: the functions of a .symtab or .dynsym as numpy arrays, names left in the file.

The arrays of one section are parallel and in the order of the file. It is read in chunks, so the symbols that
are not functions (most of them, in C++ libraries) are never in memory all at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.elf.image import EM_386, EM_X86_64, ElfImage
from bpfleakd.elf.section import Section
from bpfleakd.errors import BadElf

# Bits of `FunctionRows.traits`. As a number, the lower is the better of two names for one address.
UNSIZED, LOCAL, HIDDEN_VERSION, IFUNC = 1, 2, 4, 8

CHUNK_ROWS = 64 << 10

# Three times the symbols of Chromium; a hostile sparse file has billions.
ROWS_MAX = 8_000_000

# Symbols have 32 bits for the place of their name.
NAMES_LIMIT_BYTES = 1 << 32

_STB_LOCAL = 0
_STT_NOTYPE, _STT_FUNC, _STT_GNU_IFUNC = 0, 2, 10
_SHN_UNDEF, _SHN_LORESERVE, _SHN_XINDEX = 0, 0xFF00, 0xFFFF
_VERSYM_HIDDEN = 0x8000


class StringTable(Struct, frozen=True):
    """The names of one symbol section, as a range of its file."""

    image: ElfImage
    file_offset: int
    size_bytes: int

    def read(self, start: int, size_bytes: int) -> bytes:
        """Return the bytes from `start`, fewer at the end of the table."""
        return self.image.source.read(self.file_offset + start, min(size_bytes, self.size_bytes - start))

    def name_at(self, start: int) -> bytes:
        """Return the name that starts there, without its NUL."""
        return self.image.string_at(self.file_offset + start, self.file_offset + self.size_bytes)


class FunctionRows(Struct, frozen=True):
    """One row a function. `names` are offsets in the string table."""

    addresses: NDArray[np.uint64]
    sizes_bytes: NDArray[np.uint32]
    names: NDArray[np.uint32]
    traits: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.addresses)

    def where(self, keep: NDArray[np.bool_]) -> FunctionRows:
        """Return the rows that `keep` marks."""
        return FunctionRows(self.addresses[keep], self.sizes_bytes[keep], self.names[keep], self.traits[keep])


class SymbolSection(Struct, frozen=True):
    """The functions read from one symbol section. `omitted` counts the symbols beyond the limits."""

    rows: FunctionRows
    strings: StringTable
    omitted: int


def read_functions(
    image: ElfImage, section_name: str, room: int, known: NDArray[np.uint64]
) -> SymbolSection | None:
    """About `room` defined functions of a symbol section, None where the image has not got it.

    Functions at addresses in `known` (sorted) are left out. Untyped symbols count if they are in an
    executable section, as in hand-written assembly. Raises `BadElf`.
    """
    section = image.section(section_name)
    if section is None or not section.has_bytes:
        return None
    strings = _strings_of(image, section)
    reader = _Reader(image, section, strings.size_bytes)
    limit, first, kept = min(reader.rows, ROWS_MAX), 0, 0
    chunks = []
    while first < limit and kept < room:
        functions = reader.functions(first, min(CHUNK_ROWS, limit - first))
        chunks.append(functions.where(~_are_in(known, functions.addresses)))
        first += CHUNK_ROWS
        kept += len(chunks[-1])
    return SymbolSection(_joined(chunks), strings, max(0, reader.rows - first))


def names_function(image: ElfImage, section_name: str, names: NDArray[np.uint32]) -> bool:
    """Whether a defined function of a symbol section has one of the `names`, offsets in the string table.

    Raises `BadElf`.
    """
    section = image.section(section_name)
    if section is None or not section.has_bytes:
        return False
    reader = _Reader(image, section, _strings_of(image, section).size_bytes)
    limit = min(reader.rows, ROWS_MAX)
    return any(
        bool(np.isin(reader.functions(first, min(CHUNK_ROWS, limit - first)).names, names).any())
        for first in range(0, limit, CHUNK_ROWS)
    )


def _strings_of(image: ElfImage, section: Section) -> StringTable:
    if not 0 < section.header.link < len(image.sections):
        raise BadElf(f"{image.name}: {section.name} has no string table")
    strings = image.sections[section.header.link]
    if strings.file_offset + strings.size_bytes > image.source.size_bytes:
        raise BadElf(f"{image.name}: the names of {section.name} end behind the file")
    return StringTable(image, strings.file_offset, min(strings.size_bytes, NAMES_LIMIT_BYTES))


class _Reader:
    """Reads runs of rows of one symbol section and keeps the functions."""

    def __init__(self, image: ElfImage, section: Section, names_end: int) -> None:
        self._image = image
        self._section = section
        self._names_end = names_end
        self._layout = _row_layout(image)
        self.rows = section.size_bytes // self._layout.itemsize
        # One more, for all invalid indexes.
        self._in_text = np.array([s.executable for s in image.sections] + [False])
        self._versions = image.section(".gnu.version") if section.name == ".dynsym" else None

    def functions(self, first: int, rows: int) -> FunctionRows:
        table = np.frombuffer(self._bytes_of(self._section, first, rows, self._layout.itemsize), self._layout)
        kind, local = table["info"] & 0xF, (table["info"] >> 4) == _STB_LOCAL
        ifunc = kind == _STT_GNU_IFUNC
        label = (kind == _STT_NOTYPE) & self._in_text[np.minimum(table["section"], len(self._in_text) - 1)]
        if self._image.machine not in (EM_386, EM_X86_64):
            # ARM and RISC-V have mapping symbols, "$x" and "$d" around every literal pool.
            label &= ~local
        keep = ((kind == _STT_FUNC) | ifunc | label) & _defined(table["section"])
        keep &= (table["name"] != 0) & (table["name"] < self._names_end)
        traits = (table["size"] == 0) * UNSIZED + local * LOCAL + ifunc * IFUNC
        traits = traits + self._hidden(first, rows) * HIDDEN_VERSION
        return FunctionRows(
            table["value"].astype(np.uint64),
            np.minimum(table["size"], 0xFFFFFFFF).astype(np.uint32),
            table["name"].astype(np.uint32),
            traits.astype(np.uint8),
        ).where(keep)

    def _hidden(self, first: int, rows: int) -> NDArray[np.bool_]:
        if self._versions is None or not self._versions.has_bytes:
            return np.zeros(rows, dtype=bool)
        data = self._bytes_of(self._versions, first, rows, 2)
        hidden: NDArray[np.bool_] = (
            np.frombuffer(data, self._image.header.byte_order + "u2") & _VERSYM_HIDDEN
        ) != 0
        return hidden

    def _bytes_of(self, section: Section, first: int, rows: int, row_bytes: int) -> bytes:
        return self._image.source.read(section.file_offset + first * row_bytes, rows * row_bytes)


def _row_layout(image: ElfImage) -> np.dtype[np.void]:
    order = image.header.byte_order
    word = order + ("u8" if image.header.is_64bit else "u4")
    tail = [("info", "u1"), ("other", "u1"), ("section", order + "u2")]
    numbers = [("value", word), ("size", word)]
    return np.dtype([("name", order + "u4"), *(tail + numbers if image.header.is_64bit else numbers + tail)])


def _are_in(known: NDArray[np.uint64], addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(addresses), dtype=bool)
    are_in: NDArray[np.bool_] = (
        known[np.minimum(np.searchsorted(known, addresses), len(known) - 1)] == addresses
    )
    return are_in


def _defined(sections: NDArray[np.uint16]) -> NDArray[np.bool_]:
    defined: NDArray[np.bool_] = (sections != _SHN_UNDEF) & (
        (sections < _SHN_LORESERVE) | (sections == _SHN_XINDEX)
    )
    return defined


def _joined(parts: Sequence[FunctionRows]) -> FunctionRows:
    return FunctionRows(
        np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in parts)]),
        np.concatenate([np.empty(0, np.uint32), *(part.sizes_bytes for part in parts)]),
        np.concatenate([np.empty(0, np.uint32), *(part.names for part in parts)]),
        np.concatenate([np.empty(0, np.uint8), *(part.traits for part in parts)]),
    )
