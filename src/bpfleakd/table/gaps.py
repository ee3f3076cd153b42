"""What is known about time without readings: from the end of a daemon to the next one's first reading.

The kernel went on counting. So the births in a gap are known as a sum, and the blocks that still live by
their time of birth. Only the blocks that came and went are unknown. So in the bins of a gap

  - the live memory grows by what survives of it, as if nothing older was freed before the next reading, but
    not beyond that reading. So growth is placed as early as it may have happened: a table that filled up and
    replaces its entries since does not seem to grow until the end. One jump stays one jump, steady growth
    stays steady, and no growth appears that the blocks do not show. Any other gain counts from the end of the
    gap on;
  - survivors count at their times of birth, and the blocks that came and went are spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


def bins_in_gaps(edges_ns: NDArray[np.int64], gaps_ns: Sequence[tuple[int, int]]) -> list[NDArray[np.intp]]:
    """The bins that each gap overlaps, without gaps that overlap none."""
    starts_ns, ends_ns = edges_ns[:-1], edges_ns[1:]
    found = [np.flatnonzero((starts_ns < end_ns) & (ends_ns > start_ns)) for start_ns, end_ns in gaps_ns]
    return [bins for bins in found if len(bins)]


def live_in_gaps(low: Matrix, survivors: Matrix, gaps: Sequence[NDArray[np.intp]]) -> Matrix:
    """The live figure in each bin (rows) of each site (columns), from its least and each bin's survivors."""
    if not gaps:
        return low
    figures = low.copy()
    for bins in gaps:
        grown = low[bins[0]] + np.cumsum(survivors[bins], axis=0)
        figures[bins] = np.maximum(low[bins], np.minimum(grown, low[bins[-1]]))
    return figures


def births_in_gaps(
    born: Matrix, survivors: Matrix, gaps: Sequence[NDArray[np.intp]], edges_ns: NDArray[np.int64]
) -> Matrix:
    """The births in each bin; their sum is unchanged."""
    if not gaps:
        return born
    births, widths_ns = born.copy(), np.diff(edges_ns)
    for bins in gaps:
        total, lived = births[bins].sum(axis=0), survivors[bins]
        gone = np.maximum(total - lived.sum(axis=0), 0.0)
        part = (widths_ns[bins] / widths_ns[bins].sum())[:, None]
        births[bins] = lived + part * gone
    return births
