"""Histories of a heap whose figures are only known at its collections.

Between two collections nothing is known: an unchanged figure is neither silence nor a plateau. Such sites
therefore count only the bins of time with a reported collection, and their time ends with the last one.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from bpfleakd.verdicts.envelope import Row
from bpfleakd.verdicts.site_histories import SiteHistories


def as_of_collections(histories: SiteHistories, collected_s: Row) -> SiteHistories:
    """The live figures after each collection, or only the first bin if there was none.

    `collected_s` are the times of the collections since the recording began.
    """
    ends_s = histories.ends_s
    bins = np.unique(np.searchsorted(ends_s, collected_s))
    bins = bins[bins < len(ends_s)] if (bins < len(ends_s)).any() else np.zeros(1, np.intp)
    # A bin begins with the figures that the one before ended with. They are the least after a collection only
    # if that bin had a collection too.
    after_bytes = np.vstack([histories.low_bytes[1:], histories.live_bytes])
    after_count = np.vstack([histories.low_count[1:], histories.live_count])
    starts = np.concatenate([[0], bins[:-1] + 1])
    return replace(
        histories,
        ends_s=ends_s[bins],
        low_bytes=after_bytes[bins],
        low_count=after_count[bins],
        born_count=np.add.reduceat(histories.born_count[: bins[-1] + 1], starts, axis=0),
        intervals_bytes=None,
        allocated_count=None,
        firsts_s=None,
        collections=len(collected_s),
    )
