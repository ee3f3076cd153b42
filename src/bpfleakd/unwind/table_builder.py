"""Unwind tables of open files: from the cache, or built by a helper without rights (sandbox/).

Rules:
- A helper reads one file, and what it answers holds for that file alone: the digest that stands for what a
  table was made of is computed here, of the same bytes. So they must not change meanwhile: where they could,
  nothing is kept (`is_stable`).
- What a helper answers is checked before it is used: the walker in the kernel relies on it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from bpfleakd.elf.byte_source import FileBytes
from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.vdso import own_vdso_image
from bpfleakd.errors import BadElf
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.sandbox.trial_file import TRIAL_FILE
from bpfleakd.unwind.build import MAX_ROWS, build_table, sections_of
from bpfleakd.unwind.cache import TableCache, TableKey
from bpfleakd.unwind.malformed import SkipReason
from bpfleakd.unwind.pe import build_pe_table, is_pe, pe_sections_of
from bpfleakd.unwind.rules import pack, unpack
from bpfleakd.unwind.table import UnwindTable, check

JOBS = ("build",)

# libLLVM takes 3 s, a browser 10.
_LIMIT_S = 30.0
_FRAME_SECTIONS = (".eh_frame", ".eh_frame_hdr", ".debug_frame")
_CHUNK_BYTES = 1 << 20
# Rows and index of the largest table, and all its rules.
_ANSWER_BYTES_MAX = 4 * MAX_ROWS + (64 << 20)
# A framework compiled into one file has 100 MB.
_PE_BYTES_MAX = 256 << 20

_Segments = tuple[tuple[int, int, int], ...]


class BuiltTable(Struct, frozen=True, eq=False):
    """The answer for one file: `table`, or the reason why it has no table.

    `digest` (hex) stands for the contents that the table was made of: equal digests, equal tables.
    `segments` are the file's executable ones: file offset, vaddr, bytes.
    """

    digest: str
    table: UnwindTable | None
    segments: _Segments = ()
    failure: str = ""


class _Answer(msgspec.Struct, frozen=True, tag=True):
    """What a helper has built, its arrays as they are in memory, or why there is nothing to build of."""

    text_start: int = 0
    rows: bytes = b""
    page_index: bytes = b""
    rules: bytes = b""
    fde_count: int = 0
    skipped: dict[str, int] = {}
    segments: _Segments = ()
    failure: str = ""


class TableBuilder:
    """Finds or builds tables, and stores them in `cache_directory`, unless it is None. Used by threads."""

    def __init__(self, helpers: Helpers, cache_directory: Path | None = None) -> None:
        self._helpers = helpers
        self._cache_directory = cache_directory

    def table_of(self, descriptor: int, *, is_stable: bool) -> BuiltTable:
        """The table of an open file. Raises HelperFailed, which says nothing of the file, and OSError."""
        try:
            if is_pe(os.pread(descriptor, 2, 0)):
                key = TableKey(None, _digest_of(_chunks(descriptor)))
                return BuiltTable(key.digest.hex(), *self._built(descriptor, key))
            with ElfImage.open(descriptor) as image:
                key = TableKey(image.build_id, _digest_of(_parts(image)))
                segments = _executable_segments(image)
            cache = TableCache(self._cache_directory) if self._cache_directory and is_stable else None
            table = cache.find(key) if cache else None
            if table is None:
                table, _segments = self._built(descriptor, key)
                if cache:
                    cache.store(key, table)
        except (BadElf, ValueError) as error:
            return BuiltTable("", None, failure=str(error))
        return BuiltTable(key.digest.hex(), table, segments)

    def vdso_table(self) -> BuiltTable:
        """The table of the kernel's vdso, which needs no helper."""
        try:
            with own_vdso_image()[0] as image:
                sections = sections_of(image)
                return BuiltTable(sections.digest.hex(), build_table(sections), _executable_segments(image))
        except (BadElf, OSError) as error:
            return BuiltTable("", None, failure=str(error))

    def _built(self, descriptor: int, key: TableKey) -> tuple[UnwindTable, _Segments]:
        answer = self._helpers.answer(
            f"{__name__}:build",
            None,
            [descriptor],
            _Answer,
            limit_s=_LIMIT_S,
            bytes_max=_ANSWER_BYTES_MAX,
        )
        if answer.failure:
            raise BadElf(answer.failure)
        table = UnwindTable(
            key.build_id,
            answer.text_start,
            np.frombuffer(answer.rows, np.uint32),
            np.frombuffer(answer.page_index, np.uint32),
            unpack(answer.rules),
            answer.fde_count,
            {SkipReason(reason): count for reason, count in answer.skipped.items()},
        )
        check(table)
        return table, answer.segments


def _executable_segments(image: ElfImage) -> _Segments:
    return tuple(
        (segment.file_offset, segment.vaddr, segment.file_size_bytes)
        for segment in image.segments
        if segment.executable
    )


def _digest_of(parts: Iterator[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _parts(image: ElfImage) -> Iterator[bytes]:
    """All that a table is made of, as it is in the file, in small pieces."""
    sections = [section for name in _FRAME_SECTIONS if (section := image.section(name))]
    headers = [section.header for section in sections]
    yield repr((image.machine, image.build_id, image.segments, headers)).encode()
    for section in sections:
        if section.has_bytes:
            for start in range(0, section.size_bytes, _CHUNK_BYTES):
                size_bytes = min(_CHUNK_BYTES, section.size_bytes - start)
                yield section.source.read(section.file_offset + start, size_bytes)


def _chunks(descriptor: int) -> Iterator[bytes]:
    source = FileBytes(descriptor)
    if source.size_bytes > _PE_BYTES_MAX:
        raise BadElf(f"a PE file of more than {_PE_BYTES_MAX >> 20} MiB")
    yield b"PE"
    for start in range(0, source.size_bytes, _CHUNK_BYTES):
        yield source.read(start, min(_CHUNK_BYTES, source.size_bytes - start))


# The helper's side


def prepare() -> None:
    """Load all that is needed, while files can still be opened: a file of ours is gone through once."""
    with open(TRIAL_FILE, "rb") as file:
        answers: list[object] = []
        build([file.fileno()], None, answers.append)


def build(files: Sequence[int], _arguments: Any, answer: Callable[[object], None]) -> None:
    """Build the table of the file."""
    try:
        table, segments = _table_of(files[0])
    except (BadElf, OSError) as error:
        answer(_Answer(failure=str(error)))
        return
    answer(
        _Answer(
            table.text_start,
            table.rows.tobytes(),
            table.page_index.tobytes(),
            pack(table.rules),
            table.fde_count,
            {reason.value: count for reason, count in table.skipped.items()},
            segments,
        )
    )


def _table_of(descriptor: int) -> tuple[UnwindTable, _Segments]:
    if is_pe(os.pread(descriptor, 2, 0)):
        pe = pe_sections_of(b"".join(_chunks(descriptor))[2:])
        return build_pe_table(pe, MAX_ROWS), pe.segments
    with ElfImage.open(descriptor) as image:
        return build_table(sections_of(image)), _executable_segments(image)
