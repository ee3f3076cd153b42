"""Call sites that are one, or are charged together, with one history: the sum of theirs.

After a JIT compiles a method again, or if a library is mapped at another address, the same work has another
stack: the history of one ends where that of the next begins, and only their sum shows what becomes of the
memory.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.verdicts.envelope import Matrix, Row
from bpfleakd.verdicts.site_histories import SiteHistories

__all__ = ["Units", "summed"]

Rows = NDArray[np.intp]


class Units(Struct, frozen=True):
    """Which rows of a table are judged as one: `lead[row]` is the row that stands for the unit of each."""

    lead: Rows

    @staticmethod
    def of(labels: dict[int, object], rows: int) -> Units | None:
        """Rows with equal labels are one unit, others are separate units; None if no two are together."""
        lead = np.arange(rows)
        first: dict[object, int] = {}
        for row, label in sorted(labels.items()):
            if row < rows:
                lead[row] = first.setdefault(label, row)
        return Units(lead) if (lead != np.arange(rows)).any() else None

    def members(self, leads: Rows) -> tuple[Rows, Rows]:
        """All rows of these units (their leads rising), unit by unit, and where each unit begins in them."""
        is_wanted = np.zeros(len(self.lead), bool)
        is_wanted[leads] = True
        rows = np.flatnonzero(is_wanted[self.lead])
        rows = rows[np.argsort(self.lead[rows], kind="stable")]
        return rows, np.searchsorted(self.lead[rows], leads)

    def latest(self, changed_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """When a row of each unit changed last, by row of its lead."""
        latest = changed_ns.copy()
        others = np.flatnonzero(self.lead != np.arange(len(self.lead)))
        np.maximum.at(latest, self.lead[others], changed_ns[others])
        return latest


def summed(histories: SiteHistories, starts: Rows) -> SiteHistories:
    """The histories of groups of sites that are next to one another; group i begins at site `starts[i]`.

    The least of a sum is at least the sum of the least: what groups gain is not overstated.
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
