"""Ranges of addresses, of which the most recently added one wins.

They are stored in three arrays sorted by start, with the highest end up to each row: most lookups examine one
row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ADDRESS_LIMIT = 1 << 64


class JitIndex:
    """Up to `limit` ranges; `dropped` counts the oldest ones beyond it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._starts = np.empty(0, np.uint64)
        self._sizes = np.empty(0, np.uint32)
        self._order = np.empty(0, np.uint64)
        self._ends_so_far = np.empty(0, np.uint64)
        self._pending: list[NDArray[np.uint64]] = []
        self._pending_count = 0
        self.dropped = 0

    def __len__(self) -> int:
        self._merge()
        return len(self._starts)

    def add(self, entries: Sequence[tuple[int, int, int]]) -> int:
        """Add (start, size, order) triples, of which a greater order is newer.

        Returns how many were left out because they are empty or exceed the address space.
        """
        kept = [entry for entry in entries if entry[1] and entry[0] + entry[1] < _ADDRESS_LIMIT]
        if kept:
            self._pending.append(np.array(kept, dtype=np.uint64))
            self._pending_count += len(kept)
        if self._pending_count > self._limit:
            self._merge()
        return len(entries) - len(kept)

    def find(self, address: int) -> tuple[int, int, int] | None:
        """Start, size and order of the newest range that contains an address."""
        self._merge()
        above = int(np.searchsorted(self._starts, np.uint64(address), side="right"))
        if above == 0 or int(self._ends_so_far[above - 1]) <= address:
            return None
        first = above - 1
        if above > 1 and int(self._ends_so_far[above - 2]) > address:
            first = 0  # ranges overlap here: any earlier one may extend to the address
        ends = self._starts[first:above] + self._sizes[first:above]
        around = np.flatnonzero(ends > np.uint64(address)) + first
        row = around[np.argmax(self._order[around])]
        return int(self._starts[row]), int(self._sizes[row]), int(self._order[row])

    def _merge(self) -> None:
        if not self._pending:
            return
        starts = np.concatenate([self._starts, *(rows[:, 0] for rows in self._pending)])
        sizes = np.concatenate([self._sizes, *(rows[:, 1].astype(np.uint32) for rows in self._pending)])
        order = np.concatenate([self._order, *(rows[:, 2] for rows in self._pending)])
        self._pending, self._pending_count = [], 0
        # Of ranges with the same start the newest is kept: it comes last, since older ones always come first.
        by_start = np.argsort(starts, kind="stable")
        newest = np.append(starts[by_start][1:] != starts[by_start][:-1], True)
        rows = by_start[newest]
        if len(rows) > self._limit:
            self.dropped += len(rows) - self._limit
            rows = rows[order[rows] >= np.sort(order[rows])[-self._limit]]
        self._starts, self._sizes, self._order = starts[rows], sizes[rows], order[rows]
        self._ends_so_far = np.maximum.accumulate(self._starts + self._sizes)
