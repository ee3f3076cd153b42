"""The histories of call sites, from the table of a process and the survivors among its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.model.site import SiteKey
from bpfleakd.table.estimates import COUNT_VARIANCE_UNIT
from bpfleakd.table.gaps import bins_in_gaps, births_in_gaps, live_in_gaps
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.table.survivors import Survivors, count_survivors
from bpfleakd.tracing.address_space.regions import BLOCK_KINDS
from bpfleakd.tracing.judging.observations import Observations
from bpfleakd.verdicts.collected import as_of_collections
from bpfleakd.verdicts.full_table import until_full
from bpfleakd.verdicts.merged_histories import Units, summed
from bpfleakd.verdicts.site_histories import SiteHistories, chosen

# LIVE_BLOCK records, kinds by BLOCK_KINDS.
Blocks = Iterable[NDArray[np.void]]

# For a smaller share of the sites, find their blocks and count only these.
_FEW_SHARE = 0.25
_CHUNK_SITES = 2048
_NO_ROWS = np.zeros(0, np.intp)


class HistorySource(Struct, frozen=True):
    """The sources of histories.

    The table, the survivors with the row of each site (-1: not in the table), and the observations of the
    process.
    """

    table: SiteTable
    survivors: Survivors
    of_survivors: NDArray[np.intp]
    observed: Observations

    @classmethod
    def of(
        cls, table: SiteTable, blocks: Blocks, rows: NDArray[np.intp], observed: Observations
    ) -> HistorySource:
        """Count survivors in one pass over all live `blocks`, for these rows at least."""
        if not len(rows):
            survivors_of = count_survivors((), table.timeline.edges_ns), _NO_ROWS
        else:
            survivors_of = _survivors(table, blocks, rows)
        return cls(table, *survivors_of, observed)

    def parts(self, leads: NDArray[np.intp], units: Units | None) -> Iterator[NDArray[np.intp]]:
        """Leads to measure together: all rows of a unit are of one kind, since the data on kinds differs."""
        heap, blocks = self.table.are_heap(leads), self.table.have_blocks(leads)
        for part in (leads[heap], leads[~heap & blocks], leads[~blocks]):
            for start in range(0, len(part), _CHUNK_SITES):
                yield part[start : start + _CHUNK_SITES]

    def histories(self, leads: NDArray[np.intp], units: Units | None) -> SiteHistories:
        """The histories of sites, in the order of their leads, each merged with the others of its unit."""
        if units is None:
            return self._of_rows(leads)
        members, starts = units.members(leads)
        order = np.argsort(members)
        histories = self._of_rows(members[order])
        return summed(chosen(histories, np.argsort(order)), starts)

    def whole(self, rows: NDArray[np.intp]) -> SiteHistories:
        """The complete histories of these rows: all bins and all counted survivors."""
        return replace(
            _histories(self.table, rows, self.survivors, self.of_survivors),
            intervals_bytes=self.observed.intervals_bytes(self.table),
        )

    def _of_rows(self, rows: NDArray[np.intp]) -> SiteHistories:
        histories = self.whole(rows)
        if self.table.are_heap(rows).all():
            full_since_s = self.observed.full_since_s(self.table)
            return histories if full_since_s is None else until_full(histories, full_since_s)
        if self.table.have_blocks(rows).all():
            return histories
        histories = replace(histories, survivors_count=None, survivors_bytes=None)
        collected_s = self.observed.collected_s(self.table)
        return histories if collected_s is None else as_of_collections(histories, collected_s)


def _survivors(
    table: SiteTable, blocks: Blocks, rows: NDArray[np.intp]
) -> tuple[Survivors, NDArray[np.intp]]:
    """The survivors of these rows at least, with the row of each site; -1 if it is not in the table yet."""
    if len(rows) < _FEW_SHARE * len(table):
        keys = table.keys
        wanted = np.array([keys[row].stack_id for row in rows.tolist()], np.uint64)
        blocks = (batch[np.isin(batch["stack_id"], wanted)] for batch in blocks)
    last_ns = int(table.timeline.edges_ns[-1])
    # Blocks born since the last reading belong to no bin yet.
    blocks = (batch[batch["born_ns"] <= last_ns] for batch in blocks)
    survivors = count_survivors(blocks, table.timeline.edges_ns)
    sites = (SiteKey(BLOCK_KINDS[kind], stack_id) for kind, stack_id in survivors.sites())
    return survivors, np.array([table.row_of(site) for site in sites], np.intp)


def _histories(
    table: SiteTable, rows: NDArray[np.intp], survivors: Survivors, of_survivors: NDArray[np.intp]
) -> SiteHistories:
    columns = table.timeline.columns(rows)
    counters = table.columns()[rows]
    index = np.searchsorted(rows, of_survivors)
    there = (of_survivors >= rows[0]) & (of_survivors <= rows[-1])
    there &= rows[np.minimum(index, len(rows) - 1)] == of_survivors
    live_count, live_bytes = survivors.matrices(np.where(there, index, -1), len(rows))
    edges_ns = table.timeline.edges_ns
    gaps = bins_in_gaps(edges_ns, table.gaps_ns)
    allocated_count = np.cumsum(columns.all_born_count)
    for bins in gaps:
        # All that was allocated in a gap was read after it.
        around = max(int(bins[0]) - 1, 0), int(bins[-1])
        allocated_count[bins] = np.interp(
            columns.ends_s[bins], columns.ends_s[list(around)], allocated_count[list(around)]
        )
    return SiteHistories(
        columns.ends_s,
        live_in_gaps(columns.low_bytes, live_bytes, gaps),
        live_in_gaps(columns.low_count, live_count, gaps),
        births_in_gaps(columns.born_count, live_count, gaps, edges_ns),
        counters[:, COUNTERS.index("live_bytes")].astype(np.float64),
        counters[:, COUNTERS.index("live_count")].astype(np.float64),
        live_count,
        live_bytes,
        _weights(counters),
        table.are_heap(rows),
        firsts_s=columns.firsts_s,
        allocated_count=allocated_count,
    )


def _weights(counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many blocks a recorded one of each site represents: weight w adds w^2 - w to the variance."""
    variance = counters[:, COUNTERS.index("live_count_variance")] * COUNT_VARIANCE_UNIT
    weights: NDArray[np.float64] = 1 + np.maximum(variance, 0) / np.maximum(
        counters[:, COUNTERS.index("live_count")], 1
    )
    return weights
