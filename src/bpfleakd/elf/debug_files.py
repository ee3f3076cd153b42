"""Separate debug files: where the symbols of a stripped file are.

Looked for in gdb's order: by build-id, then by .gnu_debuglink next to the file, in its .debug directory
and under /usr/lib/debug; each in the target's root directory (containers carry their own) and then in
ours. https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html

A candidate counts if it is this file's: the same build-id where both have one, else the CRC of the link.
"""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.section import Section
from bpfleakd.errors import BadElf

__all__ = ["debug_link", "find_debug_file", "has_line_tables", "minidebug_image"]

DEBUG_DIRECTORY = Path("usr/lib/debug")

# Fedora's minidebuginfo of libxul is 6 MB. xz streams may ask for any amount of memory to be decompressed.
MINIDEBUG_LIMIT_BYTES = 32 << 20
XZ_MEMORY_LIMIT_BYTES = 48 << 20

# The checksum means reading the whole file; larger debug files come with build-ids.
CHECKSUM_LIMIT_BYTES = 512 << 20
_CHUNK_BYTES = 1 << 20


def find_debug_file(image: ElfImage, path: str, root: Path = Path("/")) -> Path | None:
    """Return the separate debug file of `image`, or None.

    `path` is the file's path as the target sees it, `root` the target's root directory
    (/proc/PID/root). Broken candidates are passed over.
    """
    roots = (root,) if root == Path("/") else (root, Path("/"))
    link = debug_link(image)
    for candidate in _candidates(image, path, roots, link[0] if link else None):
        if _belongs(candidate, image, link[1] if link else None):
            return candidate
    return None


def debug_link(image: ElfImage) -> tuple[str, int] | None:
    """Return the file name and the CRC-32 in .gnu_debuglink; None where it is absent or broken."""
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
    """Whether the image itself holds DWARF that maps addresses to lines."""
    return _has_bytes(image, ".debug_line") and _has_bytes(image, ".debug_info")


def _candidates(image: ElfImage, path: str, roots: tuple[Path, ...], link_name: str | None) -> Iterator[Path]:
    if image.build_id:
        name = Path(".build-id", image.build_id[:2], f"{image.build_id[2:]}.debug")
        yield from (root / DEBUG_DIRECTORY / name for root in roots)
    directory = PurePosixPath(path).parent
    if link_name is None or not directory.is_absolute() or ".." in directory.parts:
        return
    inside = directory.relative_to("/")
    for root in roots:
        yield root / inside / link_name
        yield root / inside / ".debug" / link_name
        yield root / DEBUG_DIRECTORY / inside / link_name


def _belongs(candidate: Path, image: ElfImage, checksum: int | None) -> bool:
    try:
        with ElfImage.open(candidate) as debug:
            # The link of a file that was not stripped may lead to the file itself.
            if not (_has_bytes(debug, ".symtab") or has_line_tables(debug)):
                return False
            if debug.build_id and image.build_id:
                return debug.build_id == image.build_id
            return checksum is not None and _checksum_of(debug) == checksum
    except (BadElf, OSError):
        return False


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
