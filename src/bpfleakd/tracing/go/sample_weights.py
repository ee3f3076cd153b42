"""The weights of sampled blocks per bucket, also if the program changes the rate of its profile.

A block of s bytes is in the sample with probability p = 1 - exp(-s / rate), and stands for 1/p blocks
(runtime/pprof/protomem.go, scaleHeapSample). The profile does not contain the rate at which a block was
drawn. So a block counts at the rate at which it was first seen, and a freed block as the mean of its bucket.
pprof counts all blocks at the current rate, so a change of the rate looks like growth, or like its end.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpfleakd.runtimes.go.heap_profile import SampledBuckets

_Numbers = NDArray[np.float64]
_PROBABILITY_MIN = 1e-12


class SampleWeights:
    """The weights of one profile: `live` is the mean of the live blocks of each bucket as of the last update.

    `allocated` is the estimated number of allocated blocks. `changed`: the rate differs from that of the
    first blocks.
    """

    def __init__(self) -> None:
        self.live: _Numbers = np.zeros(0)
        self.allocated: _Numbers = np.zeros(0)
        self.changed = False
        self._rate_bytes: int | None = None
        self._allocs: _Numbers = np.zeros(0)
        self._live_count: _Numbers = np.zeros(0)

    def update(self, buckets: SampledBuckets) -> None:
        """Add a reading of the profile."""
        new = _weights(buckets.sizes.astype(np.float64), buckets.rate_bytes)
        allocs = buckets.allocs.astype(np.float64)
        live_count = allocs - buckets.frees
        self.changed |= self._rate_bytes not in (None, buckets.rate_bytes) and bool(self._allocs.any())
        self._rate_bytes = buckets.rate_bytes
        if not self.changed:
            self.live, self.allocated = new, allocs * new
        else:
            self._take_in(new, allocs)
        self._allocs, self._live_count = allocs, live_count

    def _take_in(self, new: _Numbers, allocs: _Numbers) -> None:
        missing = len(new) - len(self.live)
        before, counted, live, allocated = (
            np.pad(column, (0, missing))
            for column in (self._allocs, self._live_count, self.live, self.allocated)
        )
        drawn = np.maximum(allocs - before, 0)
        both = counted + drawn
        self.live = np.where(both > 0, (counted * live + drawn * new) / np.maximum(both, 1), new)
        self.allocated = allocated + drawn * new


def _weights(sizes: _Numbers, rate_bytes: int) -> _Numbers:
    """How many blocks a sampled one of each size represents."""
    if rate_bytes <= 1:
        return np.ones(len(sizes))
    return 1 / np.maximum(-np.expm1(-sizes / rate_bytes), _PROBABILITY_MIN)
