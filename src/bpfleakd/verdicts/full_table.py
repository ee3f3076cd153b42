"""Histories of the heap's sites while the table of live blocks, or that of threads, is full.

Only as many new blocks find room as old ones are freed, at any site. So a leak seems to stop, and memory that
comes and goes seems to shrink. Such sites are judged as of the moment when the table began to refuse blocks.
The records from before are exact, and so are the deaths among them since.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from bpfleakd.verdicts.site_histories import SiteHistories

# What a full table is of, in words; the limit that makes it larger is `limits.` and the same with `_`.
LIVE_BLOCKS, THREADS = "live blocks", "threads"


def until_full(histories: SiteHistories, full_since_s: float) -> SiteHistories:
    """The bins that ended before the table was full (the first one in any case), and what of them lives."""
    bins = max(1, int(np.searchsorted(histories.ends_s, full_since_s, side="right")))
    low_bytes, low_count = histories.low_bytes[:bins], histories.low_count[:bins]
    survivors = histories.survivors_count, histories.survivors_bytes
    survivors_count, survivors_bytes = (None if one is None else one[:bins] for one in survivors)
    if survivors_count is not None and survivors_bytes is not None:
        low_bytes = np.minimum(low_bytes, survivors_bytes.sum(axis=0))
        low_count = np.minimum(low_count, survivors_count.sum(axis=0))
    of_all = histories.intervals_bytes, histories.allocated_count, histories.firsts_s
    intervals_bytes, allocated_count, firsts_s = (None if one is None else one[:bins] for one in of_all)
    return replace(
        histories,
        ends_s=histories.ends_s[:bins],
        low_bytes=low_bytes,
        low_count=low_count,
        born_count=histories.born_count[:bins],
        survivors_count=survivors_count,
        survivors_bytes=survivors_bytes,
        intervals_bytes=intervals_bytes,
        allocated_count=allocated_count,
        firsts_s=firsts_s,
    )
