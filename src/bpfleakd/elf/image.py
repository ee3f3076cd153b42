"""ELF images: the sections, segments and identity of one program or library.

    with ElfImage.open("/usr/lib/x86_64-linux-gnu/libc.so.6") as image:
        image.build_id, image.section(".eh_frame").data, image.vaddr_of(0x26000)

Rules:
- The file may be hostile. For every fault in it, a caller gets `BadElf` and nothing else; a file that does
  not exist or cannot be opened is an `OSError`, raised by `open` only.
- Nothing is read before it is needed, and no more than `SECTION_LIMIT_BYTES` at a time.
- Addresses are virtual addresses of the file ("vaddr"); file offsets are those in /proc/PID/maps and of
  uprobes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from bpfleakd.elf.byte_source import ByteSource, FileBytes, MemoryBytes
from bpfleakd.elf.headers import ProgramHeader, SectionHeader, read_headers
from bpfleakd.elf.section import Section
from bpfleakd.errors import BadElf

EM_386 = 3
EM_X86_64 = 62

NOTE_LIMIT_BYTES = 1 << 20
NAME_LIMIT_BYTES = 64 << 10
SECTION_NAME_LIMIT_BYTES = 256
BUILD_ID_LIMIT_BYTES = 64

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_NOTE = 1, 2, 3, 4
_PF_X, _PF_W = 1, 2
_NT_GNU_BUILD_ID = 3
_DT_FLAGS_1, _DF_1_PIE = 0x6FFFFFFB, 0x08000000


class Segment(Struct, frozen=True):
    """A PT_LOAD: `file_size_bytes` bytes of the file appear at `vaddr`, the rest of memory is zero."""

    file_offset: int
    vaddr: int
    file_size_bytes: int
    memory_size_bytes: int
    executable: bool
    writable: bool


class ElfImage:
    """One ELF file, open. A context manager; `close` may be called more than once."""

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.name = source.name
        self.header, self._programs, self._sections, self._names_index = read_headers(source)
        self.machine = self.header.machine

    @classmethod
    def open(cls, file: str | os.PathLike[str] | int) -> ElfImage:
        """Open a path, or a descriptor (which stays the caller's). Raises `BadElf` or `OSError`."""
        return cls._of(FileBytes(file))

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> ElfImage:
        """Read an image in memory; `name` is for messages. Raises `BadElf`."""
        return cls._of(MemoryBytes(data, name))

    @classmethod
    def _of(cls, source: ByteSource) -> ElfImage:
        try:
            return cls(source)
        except BadElf:
            source.close()
            raise

    def close(self) -> None:
        self.source.close()

    def __enter__(self) -> ElfImage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The PT_LOAD segments in the order of the file."""
        return tuple(
            Segment(
                p.file_offset,
                p.vaddr,
                p.file_size_bytes,
                p.memory_size_bytes,
                executable=bool(p.flags & _PF_X),
                writable=bool(p.flags & _PF_W),
            )
            for p in self._of_type(_PT_LOAD)
        )

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """All sections; symbols and `header.link` refer to their indexes."""
        names = self._sections[self._names_index] if 0 < self._names_index < len(self._sections) else None
        return tuple(
            Section(self._section_name(names, header), header, self.header, self.source)
            for header in self._sections
        )

    @property
    def section_names(self) -> tuple[str, ...]:
        return tuple(section.name for section in self.sections[1:])

    def section(self, name: str) -> Section | None:
        """Return the first section of that name."""
        # A copy, so its contents live as long as the caller needs them, not as long as the image.
        return next((replace(section) for section in self.sections if section.name == name), None)

    @cached_property
    def build_id(self) -> str | None:
        """The GNU build-id in hex, or None if the file has none (or a broken note)."""
        for offset, size_bytes in self._note_ranges():
            try:
                notes = self.source.read(offset, min(size_bytes, NOTE_LIMIT_BYTES))
            except BadElf:
                continue
            if build_id := _build_id_in(notes, self.header.byte_order):
                return build_id
        return None

    @cached_property
    def is_static(self) -> bool:
        """Whether this is a program that no dynamic loader processes (including static-pie ones)."""
        if any(self._of_type(_PT_INTERP)):
            return False
        return not any(self._of_type(_PT_DYNAMIC)) or bool(self._dynamic_value(_DT_FLAGS_1) & _DF_1_PIE)

    @property
    def is_go(self) -> bool:
        return any(name in (".go.buildinfo", ".note.go.buildid") for name in self.section_names)

    def vaddr_of(self, file_offset: int) -> int | None:
        """The address of a byte of the file; if two segments share it, that of the executable one."""
        found = [s for s in self.segments if 0 <= file_offset - s.file_offset < s.file_size_bytes]
        found.sort(key=lambda segment: not segment.executable)
        return file_offset - found[0].file_offset + found[0].vaddr if found else None

    def file_offset_of(self, vaddr: int) -> int | None:
        """The file offset of the byte at `vaddr`; None outside of segments and in their zeroes."""
        for segment in self.segments:
            if 0 <= vaddr - segment.vaddr < segment.file_size_bytes:
                return vaddr - segment.vaddr + segment.file_offset
        return None

    def read(self, vaddr: int, size_bytes: int) -> bytes:
        """Return the bytes at `vaddr`: fewer at the end of a segment's file part, none outside."""
        for segment in self.segments:
            inside = vaddr - segment.vaddr
            if 0 <= inside < segment.file_size_bytes:
                return self.source.read(
                    segment.file_offset + inside, min(size_bytes, segment.file_size_bytes - inside)
                )
        return b""

    def string_at(self, file_offset: int, end: int) -> bytes:
        """Return the NUL-terminated string at a file offset, not reading beyond `end` of its table."""
        end = min(end, self.source.size_bytes, file_offset + NAME_LIMIT_BYTES)
        # Most names are short; a C++ name may have 20,000 characters.
        for size_bytes in (128, 2_048, NAME_LIMIT_BYTES):
            data = self.source.read(file_offset, max(0, min(size_bytes, end - file_offset)))
            text, terminator, _ = data.partition(b"\0")
            if terminator:
                return text
        return data

    def _of_type(self, kind: int) -> Iterator[ProgramHeader]:
        return (program for program in self._programs if program.type == kind)

    def _section_name(self, names: SectionHeader | None, header: SectionHeader) -> str:
        if names is None or header.name_offset >= names.size_bytes:
            return ""
        start = names.file_offset + header.name_offset
        end = min(names.file_offset + names.size_bytes, start + SECTION_NAME_LIMIT_BYTES)
        return self.string_at(start, end).decode(errors="replace")

    def _note_ranges(self) -> Iterator[tuple[int, int]]:
        # The section first: in a separate debug file the program headers still describe the original.
        note = self.section(".note.gnu.build-id")
        if note is not None and note.has_bytes:
            yield note.file_offset, note.size_bytes
        yield from ((p.file_offset, p.file_size_bytes) for p in self._of_type(_PT_NOTE))

    def _dynamic_value(self, tag: int) -> int:
        entry = struct.Struct(self.header.byte_order + ("qQ" if self.header.is_64bit else "iI"))
        for program in self._of_type(_PT_DYNAMIC):
            size_bytes = min(program.file_size_bytes, NOTE_LIMIT_BYTES) // entry.size * entry.size
            table = self.source.read(program.file_offset, size_bytes)
            return next((value for found, value in entry.iter_unpack(table) if found == tag), 0)
        return 0


def _build_id_in(notes: bytes, byte_order: str) -> str | None:
    position = 0
    while position + 12 <= len(notes):
        name_bytes, size_bytes, kind = struct.unpack_from(byte_order + "III", notes, position)
        name_end = position + 12 + name_bytes
        start = (name_end + 3) & ~3
        is_build_id = kind == _NT_GNU_BUILD_ID and notes[position + 12 : name_end] == b"GNU\0"
        if is_build_id and 0 < size_bytes <= min(BUILD_ID_LIMIT_BYTES, len(notes) - start):
            return notes[start : start + size_bytes].hex()
        position = (start + size_bytes + 3) & ~3
    return None
