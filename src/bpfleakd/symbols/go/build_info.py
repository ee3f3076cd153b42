"""The version of Go that built a file, from .go.buildinfo.

The section begins with a header of 32 bytes: the magic, the size of a pointer, flags. With flag 2 (Go 1.18
and later) two strings follow, the version and the modules, each after its length as a varint. Before that
there were pointers to them (debug/buildinfo/buildinfo.go).
"""

from __future__ import annotations

import re

from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.printable import printable, shortened

_MAGIC = b"\xff Go buildinf:"
_HEADER_BYTES = 32
_FLAGS_AT = 15
_STRINGS_INLINE = 2
_VERSION_LIMIT_BYTES = 256
_RELEASE = re.compile(r"go(\d{1,4})\.(\d{1,4})")


class BuildInfo(Struct, frozen=True):
    """`version` as in the file; `release` is (1, 19) for go1.19.8, None for any other form."""

    version: str
    release: tuple[int, int] | None


def read_build_info(image: ElfImage) -> BuildInfo | None:
    """The version of Go that built a file; None if the file does not state it in the format of 1.18."""
    section = image.section(".go.buildinfo")
    if section is None:
        return None
    try:
        size_bytes = min(section.size_bytes, _HEADER_BYTES + _VERSION_LIMIT_BYTES)
        data = image.source.read(section.file_offset, size_bytes)
    except BadElf:
        return None
    if not data.startswith(_MAGIC) or len(data) <= _HEADER_BYTES or not data[_FLAGS_AT] & _STRINGS_INLINE:
        return None
    length, position = data[_HEADER_BYTES], _HEADER_BYTES + 1
    if length & 0x80:
        length, position = length & 0x7F | data[position] << 7, position + 1
    text = data[position : position + min(length, _VERSION_LIMIT_BYTES)].decode(errors="surrogateescape")
    found = _RELEASE.search(text)
    release = (int(found[1]), int(found[2])) if found else None
    return BuildInfo(shortened(printable(text), 64), release)
