"""Sections: the named parts of an ELF file, read on demand."""

from __future__ import annotations

import struct
import zlib
from functools import cached_property

from msgspec import Struct

from bpfleakd.elf.byte_source import ByteSource
from bpfleakd.elf.headers import FileHeader, SectionHeader
from bpfleakd.errors import BadElf

# libLLVM's .eh_frame, the largest section that is read whole, has 8 MB; a hostile sparse file has terabytes.
SECTION_LIMIT_BYTES = 128 << 20

_SHT_NOBITS = 8
_SHF_EXECINSTR, _SHF_COMPRESSED = 0x4, 0x800
_COMPRESS_ZLIB = 1


class Section(Struct, frozen=True, dict=True):
    """A named section. `size_bytes` is its size in the file, before any decompression."""

    name: str
    header: SectionHeader
    file_header: FileHeader
    source: ByteSource

    @property
    def vaddr(self) -> int:
        return self.header.vaddr

    @property
    def file_offset(self) -> int:
        return self.header.file_offset

    @property
    def size_bytes(self) -> int:
        return self.header.size_bytes

    @property
    def has_bytes(self) -> bool:
        """Whether the file has its contents (.bss has none, nor has the text of a debug file)."""
        return self.header.type != _SHT_NOBITS

    @property
    def executable(self) -> bool:
        """Whether it contains instructions."""
        return bool(self.header.flags & _SHF_EXECINSTR)

    @cached_property
    def data(self) -> memoryview:
        """The contents, decompressed and cached in this object; empty if the file has none.

        Raises `BadElf` if they are outside of the file or exceed `SECTION_LIMIT_BYTES`.
        """
        if not self.has_bytes:
            return memoryview(b"")
        self._refuse_above_limit(self.size_bytes)
        raw = self.source.read(self.file_offset, self.size_bytes)
        return memoryview(self._decompressed(raw) if self.header.flags & _SHF_COMPRESSED else raw)

    def _decompressed(self, raw: bytes) -> bytes:
        layout = struct.Struct(self.file_header.byte_order + ("IIQQ" if self.file_header.is_64bit else "III"))
        if len(raw) < layout.size:
            raise self._bad("no room for a compression header")
        fields = layout.unpack_from(raw)
        method, size_bytes = fields[0], fields[-2]
        if method != _COMPRESS_ZLIB:
            raise self._bad(f"unknown compression {method}")
        self._refuse_above_limit(size_bytes)
        try:
            data = zlib.decompressobj().decompress(memoryview(raw)[layout.size :], size_bytes + 1)
        except zlib.error as error:
            raise self._bad(f"cannot be decompressed: {error}") from error
        if len(data) != size_bytes:
            raise self._bad(f"does not decompress to the {size_bytes} bytes it declares")
        return data

    def _refuse_above_limit(self, size_bytes: int) -> None:
        if size_bytes > SECTION_LIMIT_BYTES:
            raise self._bad(f"has {size_bytes} bytes, more than {SECTION_LIMIT_BYTES}")

    def _bad(self, fact: str) -> BadElf:
        return BadElf(f"{self.source.name}: section {self.name} {fact}")
