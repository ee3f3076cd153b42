"""ELF headers: the file header, the program headers and the section headers, as values.

Decoded with struct, not with pyelftools: there are three fixed layouts, one place checks every bound, so a
hostile file has one way to fail (`BadElf`), and the daemon saves 3.5 MB. Layouts and names are those of
elf(5).
"""

from __future__ import annotations

import struct

from msgspec import Struct

from bpfleakd.elf.byte_source import ByteSource
from bpfleakd.errors import BadElf

# Real files have up to 20 program headers and 80 sections; more than this is not a program.
PROGRAM_HEADERS_MAX = 1_024
SECTIONS_MAX = 16_384

_PN_XNUM = 0xFFFF
_SHN_XINDEX = 0xFFFF


class FileHeader(Struct, frozen=True):
    """The content of the first 64 bytes. `byte_order` is the prefix of struct and numpy: "<" or ">"."""

    is_64bit: bool
    byte_order: str
    type: int
    machine: int
    entry: int


class ProgramHeader(Struct, frozen=True):
    """A segment as the file declares it."""

    type: int
    flags: int
    file_offset: int
    vaddr: int
    file_size_bytes: int
    memory_size_bytes: int


class SectionHeader(Struct, frozen=True):
    """A section as the file declares it. `name_offset` points into the section name table."""

    name_offset: int
    type: int
    flags: int
    vaddr: int
    file_offset: int
    size_bytes: int
    link: int
    info: int
    entry_size_bytes: int


def read_headers(
    source: ByteSource,
) -> tuple[FileHeader, tuple[ProgramHeader, ...], tuple[SectionHeader, ...], int]:
    """The headers and the index of the section name table (0: the file has none).

    Raises `BadElf` if a header is missing, incomplete or implausible.
    """
    ident = source.read(0, 16) if source.size_bytes >= 16 else b""
    if ident[:4] != b"\x7fELF":
        raise BadElf(f"{source.name}: is not an ELF file")
    if ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise BadElf(f"{source.name}: unknown ELF class {ident[4]} or byte order {ident[5]}")
    is_64bit, order = ident[4] == 2, "<" if ident[5] == 1 else ">"
    layout = struct.Struct(order + ("HHIQQQIHHHHHH" if is_64bit else "HHIIIIIHHHHHH"))
    (kind, machine, _, entry, ph_offset, sh_offset, _, _, ph_size, ph_count, sh_size, sh_count, names) = (
        layout.unpack(source.read(16, layout.size))
    )
    header = FileHeader(is_64bit, order, kind, machine, entry)

    sections: tuple[SectionHeader, ...] = ()
    if sh_offset:
        first = _sections(source, header, sh_offset, sh_size, 1)[0]
        # Counts that do not fit into 16 bits are in the first section, which is otherwise empty.
        sh_count = sh_count or first.size_bytes
        names = first.link if names == _SHN_XINDEX else names
        ph_count = first.info if ph_count == _PN_XNUM else ph_count
        sections = _sections(source, header, sh_offset, sh_size, sh_count)
    return header, _programs(source, header, ph_offset, ph_size, ph_count), sections, names


def _programs(
    source: ByteSource, header: FileHeader, offset: int, entry_size: int, count: int
) -> tuple[ProgramHeader, ...]:
    layout = struct.Struct(header.byte_order + ("IIQQQQQQ" if header.is_64bit else "IIIIIIII"))
    table = _table(source, "program headers", layout, offset, entry_size, count, PROGRAM_HEADERS_MAX)
    if header.is_64bit:
        return tuple(
            ProgramHeader(kind, flags, start, vaddr, in_file, in_memory)
            for kind, flags, start, vaddr, _, in_file, in_memory, _ in layout.iter_unpack(table)
        )
    return tuple(
        ProgramHeader(kind, flags, start, vaddr, in_file, in_memory)
        for kind, start, vaddr, _, in_file, in_memory, flags, _ in layout.iter_unpack(table)
    )


def _sections(
    source: ByteSource, header: FileHeader, offset: int, entry_size: int, count: int
) -> tuple[SectionHeader, ...]:
    layout = struct.Struct(header.byte_order + ("IIQQQQIIQQ" if header.is_64bit else "IIIIIIIIII"))
    table = _table(source, "sections", layout, offset, entry_size, count, SECTIONS_MAX)
    return tuple(
        SectionHeader(name, kind, flags, vaddr, start, size, link, info, entry)
        for name, kind, flags, vaddr, start, size, link, info, _, entry in layout.iter_unpack(table)
    )


def _table(
    source: ByteSource, what: str, layout: struct.Struct, offset: int, entry_size: int, count: int, limit: int
) -> bytes:
    if count == 0:
        return b""
    if count > limit:
        raise BadElf(f"{source.name}: declares {count} {what}, more than {limit}")
    if entry_size != layout.size:
        raise BadElf(f"{source.name}: {what} of {entry_size} bytes each, not {layout.size}")
    return source.read(offset, count * entry_size)
