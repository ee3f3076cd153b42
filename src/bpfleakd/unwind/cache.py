"""Unwind tables on disk, so a restarted daemon does not build them again.

    cache = TableCache(Path("/var/cache/bpfleakd/unwind"))
    table = cache.table_of(sections_of(image))

Rules:
- An entry is named after the build-id and a digest of the sections it was made from. The build-id alone would
  let the owner of one file choose the table of another.
- Rules are stored by value: their numbers differ from process to process.
- The cache only saves time. Problems with an entry or with the disk are counted, and the table is built; only
  building raises errors.
- Nothing is trusted that somebody other than root could have written (private_directory.py). On top of that
  an entry has a checksum and passes `table.check`, since the kernel side relies on those rules.
- Together the entries take no more than `max_bytes`; the ones unused for longest are removed.

An entry is a header (`_HEADER`), a u32 for each reason to skip an FDE, the rules, the page index and the rows
as they are in memory, and the 16 bytes of BLAKE2b of everything before. Little endian.
"""

from __future__ import annotations

import hashlib
import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from bpfleakd.private_directory import PrivateDirectory
from bpfleakd.unwind.build import MAX_ROWS, FrameSections, build_table
from bpfleakd.unwind.malformed import SkipReason
from bpfleakd.unwind.rules import PACKED_RULE_BYTES, pack, unpack
from bpfleakd.unwind.table import UnwindTable, check

# Increment this whenever the same sections give another table, or the layout here changes.
FORMAT_VERSION = 1

_MAGIC = b"BPFUNWND"
# Magic, version, max_rows, digest of the sections, text_start, FDEs, rules, page index, rows, reasons.
_HEADER = struct.Struct("<8sII16sQIIIII")
_DIGEST_BYTES = 16
_SUFFIX = ".unwind"
_REASONS = tuple(SkipReason)


class CacheCounts(Struct):
    """What the cache has done since the daemon started.

    `corrupt` entries were there but could not be used (damaged, foreign, of another version); `failed`
    ones could not be written; `removed` ones made room.
    """

    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    failed: int = 0
    removed: int = 0


class TableKey(NamedTuple):
    """The key of a table: `digest` (16 bytes) identifies all of its input."""

    build_id: str | None
    digest: bytes


class TableCache:
    """A directory of tables, created when the first one is stored."""

    def __init__(self, directory: Path, max_bytes: int = 256 << 20, max_rows: int = MAX_ROWS) -> None:
        self.directory = directory
        self._files = PrivateDirectory(directory, {0, os.geteuid()})
        self.max_bytes = max_bytes
        self.max_rows = max_rows
        self.counts = CacheCounts()

    def table_of(self, sections: FrameSections) -> UnwindTable:
        """The table from the cache, or build and store it. Raises the errors of `build_table`."""
        key = TableKey(sections.build_id, sections.digest)
        table = self.find(key)
        if table is None:
            table = build_table(sections, self.max_rows)
            self.store(key, table)
        return table

    def store(self, key: TableKey, table: UnwindTable) -> None:
        """Store a table."""
        self._store(_name_of(key), _encode(table, key.digest, self.max_rows))

    def find(self, key: TableKey) -> UnwindTable | None:
        """The table if it is in the cache."""
        try:
            entry = self._files.read(_name_of(key), self.max_bytes)
            table = _decode(entry, key.build_id, key.digest, self.max_rows)
        except FileNotFoundError:
            self.counts.misses += 1
            return None
        except (OSError, ValueError, struct.error):
            self.counts.corrupt += 1
            return None
        self.counts.hits += 1
        return table

    def _store(self, name: str, entry: bytes) -> None:
        if len(entry) > self.max_bytes:
            self.counts.failed += 1
            return
        try:
            # An entry torn by a power cut fails its checksum and is built again.
            self._files.write(name, entry)
            self._remove_excess()
        except (OSError, ValueError):
            self.counts.failed += 1

    def _remove_excess(self) -> None:
        """Remove the entries unused for longest until the rest takes no more than `max_bytes`."""
        files = self._files.longest_unused_first(_SUFFIX)
        excess_bytes = sum(size_bytes for _, size_bytes in files) - self.max_bytes
        for name, size_bytes in files:
            if excess_bytes <= 0:
                break
            self._files.remove(name)
            excess_bytes -= size_bytes
            self.counts.removed += 1


def _name_of(key: TableKey) -> str:
    build_id = key.build_id
    # The build-id helps people who look into the directory; it comes from a note with any content.
    readable = build_id if build_id and build_id.isalnum() and build_id.isascii() else "none"
    return f"{readable[:40]}-{key.digest.hex()}{_SUFFIX}"


def _encode(table: UnwindTable, digest: bytes, max_rows: int) -> bytes:
    header = _HEADER.pack(
        _MAGIC,
        FORMAT_VERSION,
        max_rows,
        digest,
        table.text_start,
        table.fde_count,
        len(table.rules),
        len(table.page_index),
        len(table.rows),
        len(_REASONS),
    )
    skipped = np.array([table.skipped.get(reason, 0) for reason in _REASONS], "<u4")
    arrays = (array.astype("<u4", copy=False).tobytes() for array in (table.page_index, table.rows))
    entry = b"".join((header, skipped.tobytes(), pack(table.rules), *arrays))
    return entry + _checksum(entry)


def _decode(entry: bytes, build_id: str | None, digest: bytes, max_rows: int) -> UnwindTable:
    """Return the table. Raises ValueError or struct.error for an entry that cannot be used."""
    body = memoryview(entry)[:-_DIGEST_BYTES]
    if _checksum(body) != entry[-_DIGEST_BYTES:]:
        raise ValueError("the checksum is wrong")
    magic, version, rows_limit, source, text_start, fdes, *counts = _HEADER.unpack_from(body)
    if (magic, version, rows_limit, source) != (_MAGIC, FORMAT_VERSION, max_rows, digest):
        raise ValueError("an entry of another version, or of something else")
    rule_count, index_count, row_count, reason_count = counts
    sizes = (4 * reason_count, PACKED_RULE_BYTES * rule_count, 4 * index_count, 4 * row_count)
    if _HEADER.size + sum(sizes) != len(body) or reason_count != len(_REASONS):
        raise ValueError("the parts do not add up")
    ends = np.cumsum((_HEADER.size, *sizes)).tolist()
    skipped, rules, page_index, rows = (body[a:b] for a, b in pairwise(ends))
    skip_counts = np.frombuffer(skipped, "<u4").tolist()
    table = UnwindTable(
        build_id,
        text_start,
        np.frombuffer(rows, np.uint32),
        np.frombuffer(page_index, np.uint32),
        unpack(bytes(rules)),
        fdes,
        {reason: count for reason, count in zip(_REASONS, skip_counts, strict=True) if count},
    )
    check(table)
    return table


def _checksum(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
