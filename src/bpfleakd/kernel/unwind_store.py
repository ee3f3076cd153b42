"""Unwind tables in the kernel: shards of words that the walker searches, and the processes that use them.

Rules:
  - Rows are written before the mapping that leads to them is published, and a mapping list is replaced
    as a whole: the walker sees the old list or the new one, never half of one.
  - A table lies in one shard. A table larger than a shard is cut into pieces at page boundaries, each with a
    separate part of the page index and a separate mapping.
  - A table without a process stays, because the next process of the same program will need it. The tables
    unused for longest free their words when such tables take more than `IDLE_WORDS_MAX`, or when another
    table needs the room. A shard is removed with its last table.
  - All tables share the rules, and rules are never removed: there are some hundreds of them.
  - Ranges of managed code need no table: their mapping has the number of their rule. They take precedence
    over the table of their file.
  - The tables outlive the daemon, so their places (`tables`) have to be saved before freed words are written
    again, and before a new table is published: `generation` changes whenever that is necessary.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from bpfleakd.kernel import abi, bpf
from bpfleakd.unwind.managed_code import CodeRange
from bpfleakd.unwind.rules import GAP, GAP_NUMBER, PACKED_RULE_BYTES, RuleSet, unpack
from bpfleakd.unwind.table import PAGE_BITS, PAGE_BYTES, UnwindTable

__all__ = ["IDLE_WORDS_MAX", "OF_OTHERS", "Piece", "StoreFull", "TableMapping", "UnwindStore"]

# 8 MB: the libraries of some dozens of programs.
IDLE_WORDS_MAX = 2 << 20


class StoreFull(Exception):
    """No room for a table: all shards are in use, or the kernel has no memory for another."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a file's text whose rows are in one shard; `[start, end)` are the file's addresses."""

    start: int
    end: int
    shard: int
    first_word: int
    words: int

    @property
    def index_base(self) -> int:
        """What the walker adds to a page number to get the page's word."""
        return (self.first_word - (self.start >> PAGE_BITS)) % (1 << 32)


@dataclass(frozen=True, slots=True)
class TableMapping:
    """Where a table holds in a process: addresses `[start, end)`, `bias` above the file's own."""

    start: int
    end: int
    bias: int
    pieces: tuple[Piece, ...]


@dataclass(slots=True)
class _Stored:
    pieces: tuple[Piece, ...]
    users: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Shard:
    """`free` are the unused extents: (first word, words), in order."""

    fd: int
    free: list[tuple[int, int]]


OF_OTHERS = " of others"
"""What the digest of a table ends in that was made of a file that somebody else than root may write."""

# In place of a process.
_EARLIER_DAEMON = 0

_WHOLE = (0, abi.UNWIND_SHARD_WORDS)

# A row of UNWIND_MAPPINGS: start, end, bias, shard, gap_rule, index_base.
_Entry: TypeAlias = tuple[int, int, int, int, int, int]


class UnwindStore:
    """The three maps of the walker. `descriptors` are those of unwind_rules, _shards and _mappings.

    `slot_of` returns the slot of a process in them; unused tables take at most `idle_words_max`.
    """

    def __init__(
        self,
        descriptors: Mapping[str, int],
        slot_of: Callable[[int], int],
        *,
        idle_words_max: int = IDLE_WORDS_MAX,
    ) -> None:
        self._fds = descriptors
        self._slot_of = slot_of
        self._shards_max = bpf.map_info(descriptors["unwind_shards"]).entries
        rules_max = bpf.map_info(descriptors["unwind_rules"]).entries
        self._rules = RuleSet(rules_max)
        self._rules_written = 0
        self._shards: dict[int, _Shard] = {}
        self._tables: dict[str, _Stored] = {}
        self._idle_words_max = idle_words_max
        # Unused tables, the one unused for longest first.
        self._idle: dict[str, int] = {}
        self.generation = 0
        self._write_rules()

    @property
    def words_used(self) -> int:
        """How many words of the shards those take that are not idle: the others would give way."""
        kept = self._tables.keys() - self._idle.keys()
        return sum(piece.words for digest in kept for piece in self._tables[digest].pieces)

    @property
    def is_empty(self) -> bool:
        """Whether no shard is in the kernel."""
        return not self._shard_numbers()

    @property
    def tables(self) -> dict[str, tuple[Piece, ...]]:
        """Where all tables are, by their digest."""
        return {digest: stored.pieces for digest, stored in self._tables.items()}

    def restore(self, tables: Mapping[str, tuple[Piece, ...]]) -> None:
        """Continue with tables that an earlier daemon wrote; they stay until `drop_unused`.

        Space in the maps that no table uses is freed. Called before anything is added.
        """
        self._read_rules()
        for number in self._shard_numbers():
            pieces = [piece for stored in tables.values() for piece in stored if piece.shard == number]
            if not pieces:
                bpf.map_delete(self._fds["unwind_shards"], bpf.u32(number))
                continue
            found = bpf.map_lookup(self._fds["unwind_shards"], bpf.u32(number), 4)
            self._shards[number] = _Shard(bpf.map_get(int.from_bytes(found or b"", "little")), _free(pieces))
        for digest, stored in tables.items():
            if all(piece.shard in self._shards for piece in stored):
                self._tables[digest] = _Stored(tuple(stored), {_EARLIER_DAEMON})
        self.generation += 1

    def drop_unused(self, pids: Collection[int]) -> None:
        """Forget all processes but `pids`: the tables that none of these uses are idle."""
        slots = {self._slot_of(pid) for pid in pids}
        for key in list(bpf.map_keys(self._fds["unwind_mappings"], 4)):
            if int.from_bytes(key, "little") not in slots:
                bpf.map_delete(self._fds["unwind_mappings"], key)
        for stored in self._tables.values():
            stored.users.intersection_update(pids)
        self._note_idle()

    def close(self) -> None:
        """Close the shards."""
        for shard in self._shards.values():
            os.close(shard.fd)
        self._shards.clear()

    def has(self, digest: str) -> bool:
        """Whether a table is here."""
        return digest in self._tables

    def add(self, digest: str, table: UnwindTable) -> None:
        """Write a table, unless it is here. Raises StoreFull; then nothing of it is here.

        Half of all rules and words are kept for files of root's: what anybody may write does not crowd out
        the C library.
        """
        if digest in self._tables:
            return
        is_roots = not digest.endswith(OF_OTHERS)
        if not is_roots and self._words_of_others() + table.size_bytes // 4 > self._words_max // 2:
            raise StoreFull
        rows = table.rows_numbered_by(self._rules, 0 if is_roots else self._rules.limit // 2)
        self._write_rules()
        try:
            pieces = self._placed(table, rows)
        except StoreFull:
            self._drop_idle(0)
            pieces = self._placed(table, rows)
        self._tables[digest] = _Stored(pieces)
        self.generation += 1

    def use(self, digest: str, pid: int) -> tuple[Piece, ...]:
        """Note that a process uses a table; return where it is. KeyError if it is not here."""
        stored = self._tables[digest]
        stored.users.add(pid)
        self._idle.pop(digest, None)
        return stored.pieces

    def publish(
        self,
        pid: int,
        mappings: Iterable[TableMapping],
        ranges: Sequence[CodeRange] = (),
        *,
        pending: bool = False,
    ) -> int:
        """Replace the mapping list of a process; returns how many mappings found no room in it.

        `ranges` do not overlap. `pending`: tables of further mappings are still to come, so that stacks
        without them are guesses.
        """
        whole = sorted(code for code in ranges if not code.only_gaps)
        gaps = [(code, self._rules.number_of(code.rule)) for code in ranges if code.only_gaps]
        entries = [
            piece for mapping in mappings for e in _entries(mapping, gaps) for piece in _around(e, whole)
        ]
        entries += [(c.start, c.end, 0, abi.ONE_RULE, 0, self._rules.number_of(c.rule)) for c in whole]
        entries.sort()
        self._write_rules()
        value = np.zeros(1, abi.UNWIND_MAPPINGS)
        kept = entries[: abi.MAX_UNWIND_MAPPINGS]
        value["count"], value["pending"] = len(kept), pending
        value["sorted"][0, : len(kept)] = np.array(kept, abi.UNWIND_MAPPING)
        fd = bpf.map_create(bpf.MapType.ARRAY, 4, value.itemsize, 1, 0, "bpfleakd_unwind")
        try:
            bpf.map_update(fd, bytes(4), value.tobytes())
            bpf.map_update(self._fds["unwind_mappings"], bpf.u32(self._slot_of(pid)), bpf.u32(fd))
        finally:
            os.close(fd)
        return len(entries) - len(kept)

    def release(self, pid: int, keep: Iterable[str] | None = None) -> None:
        """A process uses only the tables `keep` from now on; tables without a process become idle.

        Without `keep` its mapping list goes as well.
        """
        kept = set(keep or ())
        if keep is None:
            bpf.map_delete(self._fds["unwind_mappings"], bpf.u32(self._slot_of(pid)))
        for digest, stored in self._tables.items():
            if digest not in kept:
                stored.users.discard(pid)
        self._note_idle()

    def drop(self, digests: Iterable[str]) -> None:
        """Drop those of these tables that are unused."""
        for digest in list(digests):
            if self._idle.pop(digest, None) is not None:
                self._give_back(self._tables.pop(digest).pieces)
                self.generation += 1

    @property
    def _words_max(self) -> int:
        return self._shards_max * abi.UNWIND_SHARD_WORDS

    def _words_of_others(self) -> int:
        tables = (stored for digest, stored in self._tables.items() if digest.endswith(OF_OTHERS))
        return sum(piece.words for stored in tables for piece in stored.pieces)

    def _note_idle(self) -> None:
        for digest, stored in self._tables.items():
            if not stored.users and digest not in self._idle:
                self._idle[digest] = sum(piece.words for piece in stored.pieces)
        self._drop_idle(self._idle_words_max)

    def _drop_idle(self, words_max: int) -> None:
        """Drop unused tables until the rest of them take at most `words_max`."""
        words = sum(self._idle.values())
        while words > words_max:
            digest = next(iter(self._idle))
            words -= self._idle.pop(digest)
            self._give_back(self._tables.pop(digest).pieces)
            self.generation += 1

    def _shard_numbers(self) -> list[int]:
        keys = (bpf.u32(number) for number in range(self._shards_max))
        return [
            int.from_bytes(key, "little")
            for key in keys
            if bpf.map_lookup(self._fds["unwind_shards"], key, 4) is not None
        ]

    def _read_rules(self) -> None:
        while self._rules_written < self._rules.limit:
            key = bpf.u32(self._rules_written)
            packed = bpf.map_lookup(self._fds["unwind_rules"], key, PACKED_RULE_BYTES)
            (rule,) = unpack(packed or bytes(PACKED_RULE_BYTES))
            if rule == GAP:  # number 0 only: here nothing was written
                return
            self._rules.number_of(rule)
            self._rules_written += 1

    def _write_rules(self) -> None:
        packed = self._rules.packed(self._rules_written)
        for start in range(0, len(packed), PACKED_RULE_BYTES):
            rule = packed[start : start + PACKED_RULE_BYTES]
            bpf.map_update(self._fds["unwind_rules"], bpf.u32(self._rules_written), rule)
            self._rules_written += 1

    def _placed(self, table: UnwindTable, rows: np.ndarray) -> tuple[Piece, ...]:
        """Write all of a table. Raises StoreFull; then nothing of it is here."""
        pieces: list[Piece] = []
        try:
            for first_page, last_page in _cut(table.page_index):
                pieces.append(self._place(table, rows, first_page, last_page))
        except StoreFull:
            self._give_back(pieces)
            raise
        return tuple(pieces)

    def _place(self, table: UnwindTable, rows: np.ndarray, first_page: int, last_page: int) -> Piece:
        pages = table.page_index[first_page : last_page + 1].astype(np.int64)
        index_words = len(pages)
        part = rows[pages[0] : pages[-1]]
        shard, first_word = self._allocate(index_words + len(part))
        words = np.concatenate([(pages - pages[0] + first_word + index_words).astype(np.uint32), part])
        with mmap.mmap(self._shards[shard].fd, 4 * abi.UNWIND_SHARD_WORDS) as memory:
            memory[4 * first_word : 4 * (first_word + len(words))] = words.tobytes()
        start = table.text_start + first_page * PAGE_BYTES
        end = table.text_start + last_page * PAGE_BYTES
        return Piece(start, end, shard, first_word, len(words))

    def _allocate(self, words: int) -> tuple[int, int]:
        """First fit: (shard, first word)."""
        for number, shard in self._shards.items():
            for position, (first, length) in enumerate(shard.free):
                if length >= words:
                    rest = [(first + words, length - words)] if length > words else []
                    shard.free[position : position + 1] = rest
                    return number, first
        self._add_shard()
        return self._allocate(words)

    def _add_shard(self) -> None:
        number = next((n for n in range(self._shards_max) if n not in self._shards), None)
        if number is None:
            raise StoreFull
        try:
            fd = bpf.map_create(
                bpf.MapType.ARRAY, 4, 4 * abi.UNWIND_SHARD_WORDS, 1, bpf.MAP_FLAG_MMAPABLE, "bpfleakd_shard"
            )
        except OSError as error:
            raise StoreFull from error
        try:
            bpf.map_update(self._fds["unwind_shards"], bpf.u32(number), bpf.u32(fd))
        except OSError as error:
            os.close(fd)
            raise StoreFull from error
        self._shards[number] = _Shard(fd, [_WHOLE])

    def _give_back(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            shard = self._shards[piece.shard]
            shard.free = _joined(sorted([*shard.free, (piece.first_word, piece.words)]))
            if shard.free == [_WHOLE]:
                bpf.map_delete(self._fds["unwind_shards"], bpf.u32(piece.shard))
                os.close(self._shards.pop(piece.shard).fd)


def _free(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """What of a shard none of the pieces takes."""
    free: list[tuple[int, int]] = []
    position = 0
    for piece in sorted(pieces, key=lambda piece: piece.first_word):
        if piece.first_word > position:
            free.append((position, piece.first_word - position))
        position = piece.first_word + piece.words
    if position < abi.UNWIND_SHARD_WORDS:
        free.append((position, abi.UNWIND_SHARD_WORDS - position))
    return free


def _joined(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Extents in order, with neighbours made one."""
    joined: list[tuple[int, int]] = []
    for first, length in extents:
        if joined and sum(joined[-1]) == first:
            before_first, before_length = joined.pop()
            joined.append((before_first, before_length + length))
        else:
            joined.append((first, length))
    return joined


def _cut(page_index: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of pages [first, last) whose rows and index fit into a shard."""
    positions = page_index.astype(np.int64)
    # Word i of a piece that begins at page f takes positions[i] - positions[f] rows and i - f + 1 words.
    sizes = positions + np.arange(len(positions))
    first = 0
    while first < len(positions) - 1:
        limit = sizes[first] + abi.UNWIND_SHARD_WORDS - 1
        last = int(np.searchsorted(sizes, limit, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last


def _around(entry: _Entry, ranges: Sequence[CodeRange]) -> Iterator[_Entry]:
    """What of a row is in none of the ranges, which are in order."""
    start, end, bias, shard, gap_rule, index_base = entry
    for code in ranges:
        if code.end <= start or code.start >= end:
            continue
        if start < code.start:
            yield start, code.start, bias, shard, gap_rule, index_base
        start = code.end
    if start < end:
        yield start, end, bias, shard, gap_rule, index_base


def _entries(mapping: TableMapping, gaps: Iterable[tuple[CodeRange, int]]) -> Iterator[_Entry]:
    """The parts of a mapping that its table's pieces cover, as UNWIND_MAPPING rows."""
    in_gaps = (number for code, number in gaps if code.start <= mapping.start < code.end)
    gap_rule = next(in_gaps, GAP_NUMBER)
    for piece in mapping.pieces:
        start = max(mapping.start, piece.start + mapping.bias)
        end = min(mapping.end, piece.end + mapping.bias)
        if start < end:
            yield start, end, mapping.bias % (1 << 64), piece.shard, gap_rule, piece.index_base
