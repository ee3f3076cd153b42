"""Selects the outstanding blocks to list where there are too many to list them all.

Rules:
  - Every block that is old enough counts in the sums of its site; at most `limit` are listed.
  - The list is divided evenly: a site has all its blocks in it, or as many as any other. The remainder of the
    division goes to the largest sites.
  - Of each site, the oldest blocks are listed.
  - Blocks come in batches and are not kept, since there may be millions. A dropped block could never be
    listed, since more blocks can only make each site's part of the list smaller.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.table.estimates import block_weights, estimated_bytes

BLOCK = np.dtype(
    [
        ("address", "u8"),
        ("size", "u8"),
        ("weight", "u8"),
        ("born_ns", "u8"),
        ("stack_id", "u8"),
        ("tid", "u4"),
        ("kind", "u4"),
    ]
)
_SUMS = np.dtype(
    [
        ("kind", "u4"),
        ("stack_id", "u8"),
        ("live_bytes", "u8"),
        ("live_count", "f8"),
        ("recorded_count", "u8"),
    ]
)
_SUMMED = ("live_bytes", "live_count", "recorded_count")

# 5 MB of blocks that are still to be sorted.
_WAITING_MAX = 1 << 17


class SelectedSite(Struct, frozen=True):
    """The blocks of the site (kind, stack_id): their sums, and those listed, oldest first (BLOCK).

    For sampled blocks the live figures are estimates from `recorded_count` blocks.
    """

    kind: int
    stack_id: int
    live_bytes: int
    live_count: int
    recorded_count: int
    listed: NDArray[np.void]


class BlockSelection:
    """Selects among blocks born until `born_until_ns` (None: all) of `stack_ids` (None: all)."""

    def __init__(
        self, limit: int, *, born_until_ns: int | None = None, stack_ids: NDArray[np.uint64] | None = None
    ) -> None:
        self._limit = limit
        self._born_until_ns = born_until_ns
        self._stack_ids = stack_ids
        # Maximum number of listed blocks per site, from the blocks so far.
        self._share = limit
        self._waiting: list[NDArray[np.void]] = []
        self._waiting_count = 0
        self._kept_count = 0
        self._sums: list[NDArray[np.void]] = []

    def add(self, addresses: NDArray[np.uint64], blocks: NDArray[np.void]) -> None:
        """Add a batch: LIVE_BLOCK records, and their addresses."""
        wanted = np.ones(len(blocks), bool)
        if self._born_until_ns is not None:
            wanted &= blocks["born_ns"].astype(np.int64) <= self._born_until_ns
        if self._stack_ids is not None:
            wanted &= np.isin(blocks["stack_id"], self._stack_ids)
        rows = np.empty(int(np.count_nonzero(wanted)), BLOCK)
        if not len(rows):
            return
        rows["address"] = addresses[wanted]
        for name in ("size", "weight", "born_ns", "stack_id", "tid", "kind"):
            rows[name] = blocks[name][wanted]
        rows, starts = _by_site(rows)
        sums = np.empty(len(starts), _SUMS)
        sums["kind"], sums["stack_id"] = rows["kind"][starts], rows["stack_id"][starts]
        sums["live_bytes"] = np.add.reduceat(estimated_bytes(rows), starts)
        sums["live_count"] = np.add.reduceat(block_weights(rows), starts)
        sums["recorded_count"] = np.diff(starts, append=len(rows))
        self._sums.append(sums)
        self._waiting.append(rows[_ranks(starts, len(rows)) <= self._share])
        self._waiting_count += len(self._waiting[-1])
        if self._waiting_count > 2 * self._kept_count + _WAITING_MAX:
            self._sort_out()

    def sites(self) -> list[SelectedSite]:
        """The sites of all blocks so far, the largest first."""
        rows, starts, sums = self._sort_out()
        listed = even_shares(sums["recorded_count"], sums["live_bytes"], self._limit)
        return [
            SelectedSite(
                kind=int(sums["kind"][site]),
                stack_id=int(sums["stack_id"][site]),
                live_bytes=int(sums["live_bytes"][site]),
                live_count=round(float(sums["live_count"][site])),
                recorded_count=int(sums["recorded_count"][site]),
                listed=rows[starts[site] : starts[site] + listed[site]],
            )
            for site in _largest_first(sums["live_bytes"]).tolist()
        ]

    def _sort_out(self) -> tuple[NDArray[np.void], NDArray[np.intp], NDArray[np.void]]:
        """Drop blocks that cannot be listed; returns the others by site, the sites' first rows and sums."""
        sums = np.concatenate([np.empty(0, _SUMS), *self._sums])
        sums, starts = _by_site(sums)
        totals = sums[starts]
        if len(sums):
            for name in _SUMMED:
                totals[name] = np.add.reduceat(sums[name], starts)
        self._sums = [totals]
        self._share = even_share(totals["recorded_count"], self._limit)
        rows, starts = _by_site(np.concatenate([np.empty(0, BLOCK), *self._waiting]))
        # One more than the share, for the remainder of the division.
        rows = rows[_ranks(starts, len(rows)) <= self._share]
        self._waiting, self._waiting_count, self._kept_count = [rows], len(rows), len(rows)
        return rows, _site_starts(rows), totals


def even_share(counts: NDArray[np.uint64], limit: int) -> int:
    """The largest share such that the sites list at most `limit` blocks in total."""
    if not len(counts):
        return limit
    ascending = np.sort(counts).astype(np.int64)
    before = np.cumsum(ascending) - ascending
    # The share if all sites with fewer blocks than it list all of theirs.
    shares = (limit - before) // np.arange(len(ascending), 0, -1)
    cut = np.flatnonzero(ascending > shares)
    return int(shares[cut[0]]) if len(cut) else limit


def even_shares(counts: NDArray[np.uint64], live_bytes: NDArray[np.uint64], limit: int) -> NDArray[np.int64]:
    """The blocks to list per site, `limit` in total: an even share, and one more for the largest sites."""
    share = even_share(counts, limit)
    shares = np.minimum(counts.astype(np.int64), share)
    largest = _largest_first(live_bytes)
    more = largest[counts[largest] > share]
    shares[more[: limit - int(shares.sum())]] += 1
    return shares


def _largest_first(live_bytes: NDArray[np.uint64]) -> NDArray[np.intp]:
    return np.argsort(-live_bytes.astype(np.int64), kind="stable")


def _by_site(rows: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.intp]]:
    """The rows sorted by site, each site's oldest first if they have a time; and where each site begins."""
    keys = [rows["born_ns"]] if rows.dtype == BLOCK else []
    keys.append(rows["stack_id"])
    if len(rows) and rows["kind"].min() != rows["kind"].max():
        keys.append(rows["kind"])
    rows = rows[np.lexsort(keys)]
    return rows, _site_starts(rows)


def _site_starts(rows: NDArray[np.void]) -> NDArray[np.intp]:
    first = np.ones(len(rows), bool)
    first[1:] = (rows["stack_id"][1:] != rows["stack_id"][:-1]) | (rows["kind"][1:] != rows["kind"][:-1])
    return np.flatnonzero(first)


def _ranks(starts: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """The number of each row within its site, from 0."""
    return np.arange(count) - np.repeat(starts, np.diff(starts, append=count))
