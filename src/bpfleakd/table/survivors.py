"""Counts survivors: how many blocks born in each stretch of time are still outstanding, by site.

Survivors are counted from batches of block records (LIVE_BLOCK), like the census, so a million blocks need
little more memory than a batch. A sampled block counts for all those that it represents.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.table.estimates import block_weights, estimated_bytes

# The number of outstanding blocks of a site that were born in a stretch, and their bytes.
SURVIVORS = np.dtype(
    [("kind", "u4"), ("stretch", "u4"), ("stack_id", "u8"), ("live_count", "f8"), ("live_bytes", "f8")]
)

_ROWS_MAX = 1 << 18


class Survivors(Struct, frozen=True):
    """SURVIVORS rows: one for each site and stretch with outstanding blocks, sorted by site and stretch."""

    rows: NDArray[np.void]
    stretches: int

    def sites(self) -> list[tuple[int, int]]:
        """Kind number and stack id of the sites with outstanding blocks, in the order of the rows."""
        sites: list[tuple[int, int]] = self.rows[["kind", "stack_id"]][self._starts()].tolist()
        return sites

    def matrices(
        self, columns: NDArray[np.intp], width: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Outstanding blocks and bytes: row i is of stretch i, column `columns[j]` of `width` is of site j.

        Leaves out sites with a negative column.
        """
        of_site = np.repeat(columns, np.diff(self._starts(), append=len(self.rows)))
        chosen = self.rows[of_site >= 0]
        cells = chosen["stretch"].astype(np.intp) * width + of_site[of_site >= 0]
        shape = self.stretches, width

        def summed(name: str) -> NDArray[np.float64]:
            return (
                np.bincount(cells, chosen[name], self.stretches * width)
                .astype(np.float64, copy=False)
                .reshape(shape)
            )

        return summed("live_count"), summed("live_bytes")

    def _starts(self) -> NDArray[np.intp]:
        return _starts(self.rows, ("kind", "stack_id"))


def count_survivors(batches: Iterable[NDArray[np.void]], edges_ns: NDArray[np.int64]) -> Survivors:
    """Count LIVE_BLOCK records by site and birth; stretch i lasts from `edges_ns[i]` to the next edge.

    Blocks born before the first edge or after the last count in the first or last stretch.
    """
    stretches = len(edges_ns) - 1
    parts: list[NDArray[np.void]] = []
    for blocks in batches:
        rows = np.empty(len(blocks), SURVIVORS)
        rows["kind"], rows["stack_id"] = blocks["kind"], blocks["stack_id"]
        born_ns = blocks["born_ns"].astype(np.int64)
        rows["stretch"] = np.searchsorted(edges_ns[1:-1], born_ns, side="left")
        rows["live_count"], rows["live_bytes"] = block_weights(blocks), estimated_bytes(blocks)
        parts.append(_summed(rows))
        if sum(map(len, parts)) > _ROWS_MAX:
            parts = [_summed(np.concatenate(parts))]
    return Survivors(_summed(np.concatenate(parts)) if parts else np.empty(0, SURVIVORS), stretches)


def _summed(rows: NDArray[np.void]) -> NDArray[np.void]:
    rows = rows[np.lexsort((rows["stretch"], rows["stack_id"], rows["kind"]))]
    starts = _starts(rows, ("kind", "stack_id", "stretch"))
    if len(starts) == len(rows):
        return rows
    summed = rows[starts]
    for name in ("live_count", "live_bytes"):
        summed[name] = np.add.reduceat(rows[name], starts)
    return summed


def _starts(rows: NDArray[np.void], names: tuple[str, ...]) -> NDArray[np.intp]:
    first = np.ones(len(rows), bool)
    first[1:] = False
    for name in names:
        first[1:] |= rows[name][1:] != rows[name][:-1]
    return np.flatnonzero(first)
