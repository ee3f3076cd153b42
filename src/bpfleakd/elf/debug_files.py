"""Finds separate debug files, which contain the symbols of a stripped file.

The search follows gdb's order: by build-id, then by .gnu_debuglink next to the file, in its .debug directory
and under /usr/lib/debug. https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html

A candidate belongs to this file if both have the same build-id, or else if the CRC of the link matches; and
in any case if it has the same code at the same addresses. All of that can be forged: the caller decides which
files to trust, and must verify the debug file's statements in the program.
"""

from __future__ import annotations

import lzma
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.section import Section
from bpfleakd.errors import BadElf

DEBUG_DIRECTORY = PurePosixPath("usr/lib/debug")

# Fedora's minidebuginfo of libxul has 6 MB. Decompressing an xz stream may take any amount of memory.
MINIDEBUG_LIMIT_BYTES = 32 << 20
XZ_MEMORY_LIMIT_BYTES = 48 << 20

# Computing the checksum reads the whole file; larger debug files come with build-ids.
CHECKSUM_LIMIT_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


def find_debug_file(
    image: ElfImage, path: str, open_candidate: Callable[[PurePosixPath], int]
) -> ElfImage | None:
    """Return the separate debug file of `image`, open, or None.

    `path` is the file's path as the target sees it. `open_candidate` opens a path below the root directory
    that is searched and returns a descriptor, to be closed, or raises OSError. Broken candidates are passed
    over.
    """
    link = debug_link(image)
    for candidate in _candidates(image, path, link[0] if link else None):
        debug = _opened(candidate, open_candidate)
        if debug is not None and _belongs(debug, image, link[1] if link else None):
            return debug
        if debug is not None:
            debug.close()
    return None


def debug_link(image: ElfImage) -> tuple[str, int] | None:
    """The file name and the CRC-32 in .gnu_debuglink; None if it is missing or broken."""
    data = _data_of(image.section(".gnu_debuglink"))
    name, terminator, _ = data.partition(b"\0")
    # The checksum is aligned to four bytes after the name.
    position = (len(name) + 4) & ~3
    plain = terminator and b"/" not in name and name not in (b"", b".", b"..")
    if not plain or len(name) > 255 or len(data) < position + 4:
        return None
    (checksum,) = struct.unpack_from(f"{image.header.byte_order}I", data, position)
    return name.decode(errors="surrogateescape"), checksum


def minidebug_image(image: ElfImage) -> ElfImage | None:
    """Return the image inside .gnu_debugdata (an xz stream with a .symtab), None without or if broken."""
    compressed = _data_of(image.section(".gnu_debugdata"))
    if not compressed:
        return None
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_LIMIT_BYTES)
    try:
        data = decompressor.decompress(compressed, MINIDEBUG_LIMIT_BYTES)
        return ElfImage.from_bytes(data, f"{image.name}:.gnu_debugdata") if decompressor.eof else None
    except (lzma.LZMAError, BadElf):
        return None


def has_line_tables(image: ElfImage) -> bool:
    """Whether the image itself contains DWARF that maps addresses to lines."""
    return _has_bytes(image, ".debug_line") and _has_bytes(image, ".debug_info")


def _candidates(image: ElfImage, path: str, link_name: str | None) -> Iterator[PurePosixPath]:
    if image.build_id:
        yield DEBUG_DIRECTORY / ".build-id" / image.build_id[:2] / f"{image.build_id[2:]}.debug"
    directory = PurePosixPath(path).parent
    if link_name is None or not directory.is_absolute() or ".." in directory.parts:
        return
    inside = directory.relative_to("/")
    yield inside / link_name
    yield inside / ".debug" / link_name
    yield DEBUG_DIRECTORY / inside / link_name


def _opened(candidate: PurePosixPath, open_candidate: Callable[[PurePosixPath], int]) -> ElfImage | None:
    try:
        descriptor = open_candidate(candidate)
    except OSError:
        return None
    try:
        return ElfImage.open(descriptor)
    except (BadElf, OSError):
        return None
    finally:
        os.close(descriptor)


def _belongs(debug: ElfImage, image: ElfImage, checksum: int | None) -> bool:
    try:
        # The link of an unstripped file may refer to the file itself.
        if not (_has_bytes(debug, ".symtab") or has_line_tables(debug)):
            return False
        if not _has_same_code(debug, image):
            return False
        if debug.build_id and image.build_id:
            return debug.build_id == image.build_id
        return checksum is not None and _checksum_of(debug) == checksum
    except BadElf:
        return False


def _has_same_code(debug: ElfImage, image: ElfImage) -> bool:
    """Whether the executable sections that the debug file describes are those of the image."""
    theirs, ours = _code_sections(debug), _code_sections(image)
    if ours:
        return theirs == ours
    # The image's section headers were stripped, too.
    segments = [(s.vaddr, s.vaddr + s.file_size_bytes) for s in image.segments if s.executable]
    return all(
        any(low <= vaddr and vaddr + size <= high for low, high in segments) for _name, vaddr, size in theirs
    )


def _code_sections(image: ElfImage) -> set[tuple[str, int, int]]:
    return {(s.name, s.vaddr, s.size_bytes) for s in image.sections if s.executable}


def _checksum_of(image: ElfImage) -> int | None:
    size_bytes = image.source.size_bytes
    if size_bytes > CHECKSUM_LIMIT_BYTES:
        return None
    checksum = 0
    for start in range(0, size_bytes, _CHUNK_BYTES):
        checksum = zlib.crc32(image.source.read(start, min(_CHUNK_BYTES, size_bytes - start)), checksum)
    return checksum


def _has_bytes(image: ElfImage, name: str) -> bool:
    section = image.section(name)
    return section is not None and section.has_bytes and section.size_bytes > 0


def _data_of(section: Section | None) -> bytes:
    try:
        return bytes(section.data) if section else b""
    except BadElf:
        return b""
