"""Unwind tables in the kernel: shards of words that the walker searches, and the processes that use them.

Rules:
  - Rows are written before the mapping that leads to them is published, and a mapping list is replaced as a
    whole: the walker sees the old list or the new one, never half of one.
  - A table lies in one shard, or in pieces that have a separate mapping each (shards.py).
  - A table without a process is kept, because the next process of the same program will need it. The tables
    unused for longest are dropped when such tables take more than `IDLE_WORDS_MAX`, or when another table
    needs the room.
  - All tables share the rules, and rules are never removed: there are some hundreds of them.
  - The tables outlive the daemon, so their places (`tables`) must be saved before freed words are reused, and
    before a new table is published: `generation` changes whenever that is necessary.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec import Struct

from bpfleakd.kernel import abi, bpf
from bpfleakd.kernel.unwind_tables.mapping_list import TableMapping, mapping_rows
from bpfleakd.kernel.unwind_tables.shards import Piece, Shards, StoreFull
from bpfleakd.unwind.managed_code import CodeRange
from bpfleakd.unwind.rules import GAP, PACKED_RULE_BYTES, RuleSet, unpack
from bpfleakd.unwind.table import UnwindTable

# 8 MB: the libraries of some dozens of programs.
IDLE_WORDS_MAX = 2 << 20


class _Stored(Struct):
    pieces: tuple[Piece, ...]
    users: set[int] = msgspec.field(default_factory=set)


OF_OTHERS = " of others"
"""The end of a digest of a table made from a file that somebody other than root may write."""

# Stands for a process.
_EARLIER_DAEMON = 0


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
        self._shards = Shards(descriptors["unwind_shards"])
        rules_max = bpf.map_info(descriptors["unwind_rules"]).entries
        self._rules = RuleSet(rules_max)
        self._rules_written = 0
        self._tables: dict[str, _Stored] = {}
        self._idle_words_max = idle_words_max
        # Unused tables, those unused for longest first.
        self._idle: dict[str, int] = {}
        self.generation = 0
        self._write_rules()

    @property
    def words_used(self) -> int:
        """The words of tables that are in use; idle tables give way to new ones."""
        kept = self._tables.keys() - self._idle.keys()
        return sum(piece.words for digest in kept for piece in self._tables[digest].pieces)

    @property
    def is_empty(self) -> bool:
        """Whether the kernel has no shard."""
        return self._shards.is_empty

    @property
    def tables(self) -> dict[str, tuple[Piece, ...]]:
        """The places of all tables, by digest."""
        return {digest: stored.pieces for digest, stored in self._tables.items()}

    def restore(self, tables: Mapping[str, tuple[Piece, ...]]) -> None:
        """Adopt the tables that an earlier daemon wrote; they stay until `drop_unused`.

        Space in the maps that no table uses is freed. Called before anything is added.
        """
        self._read_rules()
        self._shards.restore([piece for stored in tables.values() for piece in stored])
        for digest, stored in tables.items():
            if self._shards.have(stored):
                self._tables[digest] = _Stored(tuple(stored), {_EARLIER_DAEMON})
        self.generation += 1

    def drop_unused(self, pids: Collection[int]) -> None:
        """Forget all processes but `pids`: tables that none of these uses become idle."""
        slots = {self._slot_of(pid) for pid in pids}
        for key in list(bpf.map_keys(self._fds["unwind_mappings"], 4)):
            if int.from_bytes(key, "little") not in slots:
                bpf.map_delete(self._fds["unwind_mappings"], key)
        for stored in self._tables.values():
            stored.users.intersection_update(pids)
        self._note_idle()

    def close(self) -> None:
        """Close the shards."""
        self._shards.close()

    def has(self, digest: str) -> bool:
        """Whether the store has a table."""
        return digest in self._tables

    def add(self, digest: str, table: UnwindTable) -> None:
        """Write a table, unless the store has it. Raises StoreFull, and then leaves nothing of it.

        Half of all rules and words are reserved for files of root's, so files that anybody may write cannot
        displace the C library's.
        """
        if digest in self._tables:
            return
        is_roots = not digest.endswith(OF_OTHERS)
        if not is_roots and self._words_of_others() + table.size_bytes // 4 > self._shards.words_max // 2:
            raise StoreFull
        rows = table.rows_numbered_by(self._rules, 0 if is_roots else self._rules.limit // 2)
        self._write_rules()
        try:
            pieces = self._shards.place(table, rows)
        except StoreFull:
            self._drop_idle(0)
            pieces = self._shards.place(table, rows)
        self._tables[digest] = _Stored(pieces)
        self.generation += 1

    def use(self, digest: str, pid: int) -> tuple[Piece, ...]:
        """Register a process as a table's user; returns the table's place.

        Raises KeyError if it is missing.
        """
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
        """Replace the mapping list of a process; returns how many mappings did not fit into it.

        `ranges` do not overlap. `pending`: tables of further mappings will follow, so stacks without them are
        guesses.
        """
        entries = mapping_rows(mappings, ranges, self._rules.number_of)
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

    def release(self, pid: int, keep: Iterable[str] = ()) -> None:
        """A process uses only the tables `keep` from now on; tables without a process become idle.

        Its mapping list is removed with its slot (slot_cleaner.py).
        """
        kept = set(keep)
        for digest, stored in self._tables.items():
            if digest not in kept:
                stored.users.discard(pid)
        self._note_idle()

    def drop(self, digests: Iterable[str]) -> None:
        """Drop those of these tables that are unused."""
        for digest in list(digests):
            if self._idle.pop(digest, None) is not None:
                self._shards.give_back(self._tables.pop(digest).pieces)
                self.generation += 1

    def _words_of_others(self) -> int:
        tables = (stored for digest, stored in self._tables.items() if digest.endswith(OF_OTHERS))
        return sum(piece.words for stored in tables for piece in stored.pieces)

    def _note_idle(self) -> None:
        for digest, stored in self._tables.items():
            if not stored.users and digest not in self._idle:
                self._idle[digest] = sum(piece.words for piece in stored.pieces)
        self._drop_idle(self._idle_words_max)

    def _drop_idle(self, words_max: int) -> None:
        """Drop unused tables until the others take at most `words_max`."""
        words = sum(self._idle.values())
        while words > words_max:
            digest = next(iter(self._idle))
            words -= self._idle.pop(digest)
            self._shards.give_back(self._tables.pop(digest).pieces)
            self.generation += 1

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
