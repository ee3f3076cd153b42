"""Unwind tables on disk, so that a restarted daemon does not build them again.

    cache = TableCache(Path("/var/cache/bpfleakd/unwind"))
    table = cache.table_of(sections_of(image))

Rules:
- An entry is named after the build-id and a digest of the sections it was made from. The build-id alone
  would let the owner of one file choose the table of another.
- Rules are stored by value: their numbers differ from process to process.
- The cache can only save time. Whatever is wrong with an entry or with the disk is counted, and the table
  is built; nothing here raises anything but what building raises.
- Nothing is trusted that someone else could have written: the directory and each entry belong to root or
  to ourselves, nobody else may write them, and symbolic links are not followed. On top of that an entry
  has a checksum and passes `table.check`, since the kernel side relies on those rules.
- Together the entries take no more than `max_bytes`; the ones unused for longest are removed.

An entry is a header (`_HEADER`), a u32 for each reason to skip an FDE, the rules, the page index and the
rows as they are in memory, and the 16 bytes of BLAKE2b of everything before. Little endian.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from bpfleakd.unwind.build import MAX_ROWS, FrameSections, build_table
from bpfleakd.unwind.malformed import SkipReason
from bpfleakd.unwind.rules import PACKED_RULE_BYTES, pack, unpack
from bpfleakd.unwind.table import UnwindTable, check

__all__ = ["CacheCounts", "TableCache"]

# To be raised whenever the same sections give another table, or the layout here changes.
FORMAT_VERSION = 1

_MAGIC = b"BPFUNWND"
# Magic, version, max_rows, digest of the sections, text_start, FDEs, rules, page index, rows, reasons.
_HEADER = struct.Struct("<8sII16sQIIIII")
_DIGEST_BYTES = 16
_SUFFIX = ".unwind"
_TEMPORARY_SUFFIX = ".unwind-tmp"
_OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_REASONS = tuple(SkipReason)


@dataclass(slots=True)
class CacheCounts:
    """What the cache has done since the daemon started.

    `corrupt` entries were there but could not be used (damaged, foreign, of another version); `failed`
    ones could not be written; `removed` ones made room.
    """

    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    failed: int = 0
    removed: int = 0


class TableCache:
    """A directory of tables, created when the first one is stored."""

    def __init__(self, directory: Path, max_bytes: int = 256 << 20, max_rows: int = MAX_ROWS) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.max_rows = max_rows
        self.counts = CacheCounts()

    def table_of(self, sections: FrameSections) -> UnwindTable:
        """Return the table from the cache, or build and store it. Raises what `build_table` raises."""
        digest = sections.digest()
        name = _name_of(sections.build_id, digest)
        table = self._load(name, sections.build_id, digest)
        if table is None:
            table = build_table(sections, self.max_rows)
            self._store(name, _encode(table, digest, self.max_rows))
        return table

    def _load(self, name: str, build_id: str | None, digest: bytes) -> UnwindTable | None:
        try:
            with self._opened_directory() as directory_fd:
                entry = _read_entry(directory_fd, name, self.max_bytes)
            table = _decode(entry, build_id, digest, self.max_rows)
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
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._opened_directory() as directory_fd:
                _write_entry(directory_fd, name, entry)
                self.counts.removed += _remove_oldest(directory_fd, self.max_bytes)
        except (OSError, ValueError):
            self.counts.failed += 1

    @contextmanager
    def _opened_directory(self) -> Iterator[int]:
        directory_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | _OPEN_FLAGS)
        try:
            _refuse_foreign(os.fstat(directory_fd))
            yield directory_fd
        finally:
            os.close(directory_fd)


def _name_of(build_id: str | None, digest: bytes) -> str:
    # The build-id is for whoever looks into the directory; it comes from a note of any content.
    readable = build_id if build_id and build_id.isalnum() and build_id.isascii() else "none"
    return f"{readable[:40]}-{digest.hex()}{_SUFFIX}"


def _refuse_foreign(status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError("somebody else can write it")


def _read_entry(directory_fd: int, name: str, max_bytes: int) -> bytes:
    with os.fdopen(os.open(name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=directory_fd), "rb") as file:
        status = os.fstat(file.fileno())
        _refuse_foreign(status)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            raise ValueError("no regular file of a plausible size")
        entry = file.read(status.st_size)
        with suppress(OSError):
            # The age decides what is removed: used is as good as new.
            os.utime(file.fileno())
    return entry


def _write_entry(directory_fd: int, name: str, entry: bytes) -> None:
    temporary = f"{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS
    try:
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=directory_fd), "wb") as file:
            file.write(entry)
        # Without fsync: an entry that a power cut tears fails its checksum and is built again.
        os.replace(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise


def _remove_oldest(directory_fd: int, max_bytes: int) -> int:
    """Remove entries until the rest takes no more than `max_bytes`; returns how many."""
    with os.scandir(directory_fd) as found:
        # What a killed daemon left half written ages and goes like everything else.
        ours = [entry for entry in found if entry.name.endswith((_SUFFIX, _TEMPORARY_SUFFIX))]
        aged = sorted((s.st_mtime_ns, entry.name, s.st_size) for entry in ours if (s := _status_of(entry)))
    excess_bytes, removed = sum(size_bytes for _, _, size_bytes in aged) - max_bytes, 0
    for _, name, size_bytes in aged:
        if excess_bytes <= 0:
            break
        os.unlink(name, dir_fd=directory_fd)
        excess_bytes, removed = excess_bytes - size_bytes, removed + 1
    return removed


def _status_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


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
        unpack(rules),
        fdes,
        {reason: count for reason, count in zip(_REASONS, skip_counts, strict=True) if count},
    )
    check(table)
    return table


def _checksum(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()
