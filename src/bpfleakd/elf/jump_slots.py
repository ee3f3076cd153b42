"""Stubs of the procedure linkage table: the target functions of jumps out of a file.

A stub jumps through a slot that the dynamic loader fills; the relocation of the slot names the function.
x86-64 only (System V ABI, AMD64 supplement, section 5.2).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf

_R_X86_64_GLOB_DAT, _R_X86_64_JUMP_SLOT = 6, 7
RELOCATION = np.dtype([("slot", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_SYMBOL_BYTES = 24

_ENDBR64, _BND = b"\xf3\x0f\x1e\xfa", b"\xf2"
_JUMP_THROUGH_SLOT = b"\xff\x25"
_STUB_BYTES = 16


class JumpSlots:
    """The slots of one file."""

    def __init__(self, image: ElfImage) -> None:
        self._image = image

    def behind_stub(self, vaddr: int) -> str | None:
        """The function that the stub at an address jumps to; None if there is no stub."""
        code = self._image.read(vaddr, _STUB_BYTES)
        jump = code.removeprefix(_ENDBR64).removeprefix(_BND)
        if not jump.startswith(_JUMP_THROUGH_SLOT) or len(jump) < 6:
            return None
        end = vaddr + len(code) - len(jump) + 6
        return self.function_of(end + int.from_bytes(jump[2:6], "little", signed=True))

    def function_of(self, slot: int) -> str | None:
        """The function whose address the loader writes to a slot; None if it is not a slot."""
        symbol = self._symbol_numbers.get(slot)
        table = self._image.section(".dynsym")
        if not symbol or table is None or not 0 < table.header.link < len(self._image.sections):
            return None
        strings = self._image.sections[table.header.link]
        try:
            row = self._image.source.read(table.file_offset + symbol * _SYMBOL_BYTES, _SYMBOL_BYTES)
            start = strings.file_offset + int.from_bytes(row[:4], "little")
            name = self._image.string_at(start, strings.file_offset + strings.size_bytes)
        except BadElf:
            return None
        return name.decode(errors="replace")

    @cached_property
    def _symbol_numbers(self) -> dict[int, int]:
        numbers: dict[int, int] = {}
        for name in (".rela.dyn", ".rela.plt"):
            section = self._image.section(name)
            if section is None:
                continue
            data = section.data
            rows = np.frombuffer(
                data[: len(data) // RELOCATION.itemsize * RELOCATION.itemsize], RELOCATION
            )
            rows = rows[np.isin(rows["type"], (_R_X86_64_GLOB_DAT, _R_X86_64_JUMP_SLOT))]
            numbers.update(zip(rows["slot"].tolist(), rows["symbol"].tolist(), strict=True))
        return numbers
