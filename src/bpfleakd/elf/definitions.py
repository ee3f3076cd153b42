"""Whether a file defines any of some functions. This runs for every file of a process, so it must be fast.

The search starts in the string tables. Most files do not have the names there, or have them only as imports,
so their symbols need not be read. Little is in memory at any time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.section import Section
from bpfleakd.elf.symbol_section import names_function

_CHUNK_BYTES = 1 << 20

# Four times the names of Chromium with all its symbols; names beyond that are not found.
_NAMES_LIMIT_BYTES = 1 << 30

# A name occurs once, or a few times as the end of others. A hostile file may have it everywhere.
_PLACES_MAX = 4_096


def defines_any(image: ElfImage, names: Collection[str]) -> bool:
    """Whether a function of one of these names is defined in `image`, exported or not.

    Raises `BadElf`.
    """
    return any(_section_defines(image, section, names) for section in (".dynsym", ".symtab"))


def imports_any(image: ElfImage, names: Collection[str]) -> bool:
    """Whether the file imports a function of one of these names. Raises `BadElf`."""
    section = image.section(".dynsym")
    if section is None or not section.has_bytes or section.header.link >= len(image.sections):
        return False
    is_named = bool(_places_of(image.sections[section.header.link], [name.encode() for name in names]))
    return is_named and not _section_defines(image, ".dynsym", names)


def _section_defines(image: ElfImage, section_name: str, names: Collection[str]) -> bool:
    section = image.section(section_name)
    if section is None or not section.has_bytes or section.header.link >= len(image.sections):
        return False
    places = _places_of(image.sections[section.header.link], [name.encode() for name in names])
    if not places:
        return False
    return names_function(image, section_name, np.fromiter(places, np.uint32))


def _places_of(strings: Section, names: Collection[bytes]) -> set[int]:
    """The places of the names in a string table. Linkers use the end of `je_malloc` as `malloc`."""
    endings = [name for name in names if not any(name != other and name.endswith(other) for other in names)]
    longest = max(map(len, names)) + 1
    found: set[int] = set()
    for start, text in _chunks(strings, overlap_bytes=longest):
        for ending in endings:
            for place in _occurrences(text, ending + b"\0"):
                end = place + len(ending)
                found.update(start + end - len(name) for name in names if text.endswith(name, 0, end))
        if len(found) > _PLACES_MAX:
            break
    return found


def _chunks(strings: Section, overlap_bytes: int) -> Iterator[tuple[int, bytes]]:
    size_bytes = min(strings.size_bytes, _NAMES_LIMIT_BYTES)
    for start in range(0, size_bytes, _CHUNK_BYTES):
        begin = max(0, start - overlap_bytes)
        end = min(size_bytes, start + _CHUNK_BYTES)
        yield begin, strings.source.read(strings.file_offset + begin, end - begin)


def _occurrences(text: bytes, wanted: bytes) -> Iterator[int]:
    place = text.find(wanted)
    while place >= 0:
        yield place
        place = text.find(wanted, place + 1)
