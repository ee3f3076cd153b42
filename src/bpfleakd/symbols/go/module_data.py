"""The places of a Go program's parts: runtime.firstmoduledata, read from its file.

No symbol is needed: it is the structure that begins with the address of .gopclntab, followed by one inside
that table. In a position-independent program, addresses are in relocations (R_X86_64_RELATIVE) instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.section import Section
from bpfleakd.errors import BadElf

# The same in Go 1.18 to 1.27.
_FUNCTION_NAMES, _TEXT, _END_OF_TEXT = 8, 176, 184
# noptrdata, data, bss and noptrbss, begin and end each; the linker chooses their order.
_DATA = tuple(range(192, 256, 16))

_SECTIONS = (".go.module", ".noptrdata", ".data")
_RELA = np.dtype([("vaddr", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_R_X86_64_RELATIVE = 8
_RELOCATIONS_LIMIT_BYTES = 96 << 20


class ModuleData(Struct, frozen=True):
    """Addresses of the file: the code of Go functions, its variables, and go:func.*."""

    text: int
    end_of_text: int
    data: int
    end_of_data: int
    functions_data: int


def read_module_data(image: ElfImage, table: Section, gofunc: int) -> ModuleData:
    """Find the module data of a file; `gofunc` is its offset of go:func.*. Raises `BadElf`.

    `table` has .gopclntab.
    """
    words = _Words(image)
    for vaddr in words.places_of(table.vaddr):
        names = words.at(vaddr + _FUNCTION_NAMES)
        if not table.vaddr < names < table.vaddr + table.size_bytes:
            continue
        found = ModuleData(
            text=words.at(vaddr + _TEXT),
            end_of_text=words.at(vaddr + _END_OF_TEXT),
            data=min(words.at(vaddr + start) for start in _DATA),
            end_of_data=max(words.at(vaddr + start + 8) for start in _DATA),
            functions_data=words.at(vaddr + gofunc),
        )
        if found.text < found.end_of_text and found.data < found.end_of_data and found.functions_data:
            return found
    raise BadElf(f"{image.name}: its module data was not found")


class _Words:
    """The words of a file as loaded at its own addresses."""

    def __init__(self, image: ElfImage) -> None:
        self._image = image

    def at(self, vaddr: int) -> int:
        """The word at an address; 0 without memory."""
        relocations = self._relocations
        row = int(np.searchsorted(relocations["vaddr"], vaddr))
        if row < len(relocations) and int(relocations["vaddr"][row]) == vaddr:
            return int(relocations["addend"][row])
        try:
            return int.from_bytes(self._image.read(vaddr, 8), "little")
        except BadElf:
            return 0

    def places_of(self, value: int) -> Iterator[int]:
        """Yield the addresses of words with this value, in sections that may contain the module data."""
        yield from self._relocations["vaddr"][self._relocations["addend"] == value].tolist()
        for name in _SECTIONS:
            section = self._image.section(name)
            if section is None or not section.has_bytes:
                continue
            data = section.data
            words = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
            for index in np.flatnonzero(words == value).tolist():
                yield section.vaddr + 8 * index

    @cached_property
    def _relocations(self) -> NDArray[np.void]:
        """R_X86_64_RELATIVE of all sections, by address."""
        parts = [np.empty(0, _RELA)]
        names = {name for name in self._image.section_names if name.startswith(".rela")}
        for section in filter(None, map(self._image.section, sorted(names))):
            if section.size_bytes <= _RELOCATIONS_LIMIT_BYTES:
                data = section.data
                rows = np.frombuffer(data[: len(data) // _RELA.itemsize * _RELA.itemsize], _RELA)
                parts.append(rows[rows["type"] == _R_X86_64_RELATIVE])
        rows = np.concatenate(parts)
        return rows[np.argsort(rows["vaddr"], kind="stable")]
