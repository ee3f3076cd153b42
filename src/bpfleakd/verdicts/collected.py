"""Histories of a heap whose figures are known only as of its collections.

Between two collections nothing is known: unchanged figures are neither silence nor a plateau. So for such
sites only bins of time with a reported collection count, and time ends with the last one.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from bpfleakd.verdicts.envelope import Row
from bpfleakd.verdicts.site_histories import SiteHistories

__all__ = ["as_of_collections"]


def as_of_collections(histories: SiteHistories, collected_s: Row) -> SiteHistories:
    """The live figures after each collection; `collected_s` are their times since the recording began.

    The first bin alone is left where there was none.
    """
    ends_s = histories.ends_s
    bins = np.unique(np.searchsorted(ends_s, collected_s))
    bins = bins[bins < len(ends_s)] if (bins < len(ends_s)).any() else np.zeros(1, np.intp)
    # A bin ends with what the next one begins with. That has nothing less, unless it was collected too.
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
        collections=len(collected_s),
    )
