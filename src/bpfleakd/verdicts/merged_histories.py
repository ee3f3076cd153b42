"""Merges the histories of call sites that are judged together, by summing them.

After a JIT compiles a method again, or after a library is mapped at another address, the same work has
another stack: one history ends where the next begins, and only their sum shows what becomes of the memory.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.verdicts.envelope import Matrix, Row
from bpfleakd.verdicts.site_histories import SiteHistories

Rows = NDArray[np.intp]


class Units(Struct, frozen=True):
    """Which rows of a table are judged together: `lead[row]` is the row that represents the unit."""

    lead: Rows

    @staticmethod
    def of(labels: dict[int, object], rows: int) -> Units | None:
        """Make a unit of each group of rows with equal labels; None if every row is its own unit."""
        lead = np.arange(rows)
        first: dict[object, int] = {}
        for row, label in sorted(labels.items()):
            if row < rows:
                lead[row] = first.setdefault(label, row)
        return Units(lead) if (lead != np.arange(rows)).any() else None

    def members(self, leads: Rows) -> tuple[Rows, Rows]:
        """All rows of these units (leads ascending), unit by unit, and where each unit begins among them."""
        is_wanted = np.zeros(len(self.lead), bool)
        is_wanted[leads] = True
        rows = np.flatnonzero(is_wanted[self.lead])
        rows = rows[np.argsort(self.lead[rows], kind="stable")]
        return rows, np.searchsorted(self.lead[rows], leads)

    def latest(self, changed_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """When any row of each unit last changed, indexed by lead."""
        latest = changed_ns.copy()
        others = np.flatnonzero(self.lead != np.arange(len(self.lead)))
        np.maximum.at(latest, self.lead[others], changed_ns[others])
        return latest


def summed(histories: SiteHistories, starts: Rows) -> SiteHistories:
    """The summed histories of groups of adjacent sites; group i begins at site `starts[i]`.

    The minimum of a sum is at least the sum of the minima, so a group's gain is not overstated.
    """

    def total(column: Matrix) -> Matrix:
        return np.add.reduceat(column, starts, axis=-1)

    survivors = histories.survivors_count, histories.survivors_bytes
    survivors_count, survivors_bytes = (None if one is None else total(one) for one in survivors)
    live_count = np.add.reduceat(histories.live_count, starts)
    return replace(
        histories,
        low_bytes=total(histories.low_bytes),
        low_count=total(histories.low_count),
        born_count=total(histories.born_count),
        live_bytes=np.add.reduceat(histories.live_bytes, starts),
        live_count=live_count,
        survivors_count=survivors_count,
        survivors_bytes=survivors_bytes,
        weight=_mean_weight(histories, starts, live_count),
        is_heap=None if histories.is_heap is None else histories.is_heap[starts],
    )


def _mean_weight(histories: SiteHistories, starts: Rows, live_count: Row) -> Row | None:
    if histories.weight is None:
        return None
    recorded = np.add.reduceat(histories.live_count / histories.weight, starts)
    mean: Row = np.where(recorded > 0, live_count / np.maximum(recorded, 1e-9), histories.weight[starts])
    return mean
