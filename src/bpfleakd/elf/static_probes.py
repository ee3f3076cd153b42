"""Probes that a file announces in its notes (.note.stapsdt, SystemTap's sys/sdt.h, version 3).

    for probe in static_probes(image, "otel_memory"):
        probe.name, probe.vaddr, probe.semaphore_vaddr, probe.arguments

If a file was prelinked after linking, the section .stapsdt.base has moved with the rest, but the notes have
not: their addresses are corrected by that distance.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

from bpfleakd.elf.image import ElfImage

_SECTION = ".note.stapsdt"
_BASE_SECTION = ".stapsdt.base"
_OWNER = b"stapsdt\0"
_TYPE = 3
# libpython has some 20 kB of notes, and few files have more. A hostile one may have any number.
_NOTES_LIMIT_BYTES = 1 << 20
_PROBES_MAX = 256
_ADDRESS_MASK = (1 << 64) - 1


class StaticProbe(Struct, frozen=True):
    """A probe at `vaddr`. `arguments` gives the place of each of its arguments: "8@%rdi -4@8(%rsp)".

    `semaphore_vaddr` is a 16-bit counter, nonzero while the probe is in use; 0: no semaphore.
    """

    name: str
    vaddr: int
    semaphore_vaddr: int
    arguments: str


def has_static_probes(image: ElfImage, provider: str) -> bool:
    """Whether a provider has any probe in the file. Raises `BadElf`."""
    return next(static_probes(image, provider), None) is not None


def static_probes(image: ElfImage, provider: str) -> Iterator[StaticProbe]:
    """The probes of a provider, 256 at most; invalid notes are skipped. Raises `BadElf`."""
    section = image.section(_SECTION)
    if section is None or not section.has_bytes or section.size_bytes > _NOTES_LIMIT_BYTES:
        return
    notes = bytes(section.data)
    if provider.encode() + b"\0" not in notes:
        return
    base = image.section(_BASE_SECTION)
    found = 0
    for description in _descriptions(notes, image.header.byte_order):
        probe = _probe(description, provider.encode(), base.vaddr if base else None, image.header.byte_order)
        if probe is not None and found < _PROBES_MAX:
            found += 1
            yield probe


def _descriptions(notes: bytes, byte_order: str) -> Iterator[bytes]:
    position = 0
    while position + 12 <= len(notes):
        name_bytes, size_bytes, kind = struct.unpack_from(byte_order + "III", notes, position)
        name_end = position + 12 + name_bytes
        start = (name_end + 3) & ~3
        if kind == _TYPE and notes[position + 12 : name_end] == _OWNER:
            yield notes[start : start + size_bytes]
        position = (start + size_bytes + 3) & ~3


def _probe(description: bytes, provider: bytes, base: int | None, byte_order: str) -> StaticProbe | None:
    if len(description) < 24:
        return None
    vaddr, known_base, semaphore = struct.unpack_from(byte_order + "QQQ", description)
    texts = description[24:].split(b"\0")
    if len(texts) < 3 or texts[0] != provider:
        return None
    moved = base - known_base if base is not None else 0
    try:
        name, arguments = texts[1].decode("ascii"), texts[2].decode("ascii")
    except UnicodeDecodeError:
        return None
    semaphore = semaphore + moved & _ADDRESS_MASK if semaphore else 0
    return StaticProbe(name, vaddr + moved & _ADDRESS_MASK, semaphore, arguments)
