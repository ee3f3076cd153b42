"""The runtime's heap profile: the live heap as of the last collection, by stack, read from memory.

The record of a bucket begins with `active`, the published profile (runtime/mprof.go). A reading walks the new
buckets (bucket_list), and reads the counters of all.

The program controls this memory: contradictory counters keep their last values, and numbers are cut to 64
bits.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.runtimes.go.bucket_list import BucketList
from bpfleakd.runtimes.go.memory import ProcessMemory, Records

BUCKETS_MAX = 500_000
_FLUSHED = 1
# A reading is consistent if the next one is equal; after this many it is used anyway, since a program may
# collect all the time.
_READINGS_MAX = 3
# This share of contradictions may come from readings during a change. A larger one means another structure.
_TORN_SHARE = 0.05
_RATE_MAX = 1 << 40
_COUNT_MAX = np.uint64(1 << 48)


class SampledBuckets(Struct, frozen=True):
    """The raw profile of the process, one row per bucket.

    Bucket i belongs to stack `rows[i]` of `stack_ids`, which are hashes. `allocs` and `frees` count blocks of
    `sizes` bytes. One block in about `rate_bytes` is in the sample.
    """

    stack_ids: list[int]
    rows: NDArray[np.intp]
    sizes: NDArray[np.int64]
    allocs: NDArray[np.int64]
    frees: NDArray[np.int64]
    rate_bytes: int


class GoHeapProfile:
    """The profile of one process."""

    def __init__(
        self,
        memory: ProcessMemory,
        counters: int,
        variables: tuple[int, int, int],
        buckets_max: int = BUCKETS_MAX,
    ) -> None:
        """`variables` are the addresses of mbuckets, mProfCycle and MemProfileRate.

        A record begins with `counters` counters (GoLayout). Reads at most `buckets_max`.
        """
        self._memory = memory
        self._counters = counters
        self._at = variables
        self._buckets = BucketList(memory, variables[0], buckets_max)
        self._senseless = 0
        self._records: Records | None = None
        self._values = np.zeros((0, counters), np.uint64)
        self._seen: tuple[int | None, int] = (None, 0)

    @property
    def rate_bytes(self) -> int:
        """The current MemProfileRate: one block per this many bytes is sampled; 0: none, or invalid."""
        rate = self._memory.number(self._at[2]) or 0
        return rate if rate <= _RATE_MAX else 0

    @property
    def cycle(self) -> int | None:
        """The number of the collection of the last reading; it wraps around."""
        return self._seen[0]

    def stack(self, stack_id: int) -> tuple[int, ...]:
        """The return addresses of a stack, one for each logical frame, innermost first; none if unknown."""
        return self._buckets.stack(stack_id)

    def some_stacks(self, count: int) -> list[tuple[int, ...]]:
        """Some of the stacks that were read."""
        return self._buckets.some_stacks(count)

    def read(self) -> SampledBuckets | None:
        """The profile, if it may have changed since the last call, or if that did not finish."""
        cycle = self._memory.number(self._at[1], 4)
        if cycle is None or not (self._is_news(cycle) or self._buckets.is_unfinished):
            return None
        return self.buckets()

    def buckets(self) -> SampledBuckets:
        """The current profile."""
        rate_bytes = self.rate_bytes
        self._read_whole()
        allocs, frees = (self._values[:, column].astype(np.int64) for column in (0, 1))
        found = self._buckets
        return SampledBuckets(list(found.stack_ids), found.rows, found.sizes, allocs, frees, rate_bytes)

    def _is_news(self, cycle: int) -> bool:
        """Whether to read.

        runtime.GC publishes again after sweeping, in the same cycle: then it is read twice.
        """
        before, times = self._seen
        if cycle != before:
            # Not before it is published; but a program that never publishes is read anyway.
            self._seen = cycle, 0 if cycle & _FLUSHED or before is None else -1
            return bool(cycle & _FLUSHED) or before is None
        if times >= 1:
            return False
        self._seen = cycle, times + 1
        return True

    def _read_whole(self) -> None:
        """Read the counters until two readings are equal, within a limit."""
        if self._buckets.read_new() or self._records is None:
            self._records = Records(self._buckets.records, self._counters)
        self._take(self._records.read(self._memory))
        for _ in range(_READINGS_MAX):
            before = self._values.copy()
            self._take(self._records.read(self._memory))
            if np.array_equal(before, self._values):
                return

    def _take(self, reading: tuple[NDArray[np.uint64], NDArray[np.bool_]]) -> None:
        values, is_read = reading
        good = is_read & self._is_plausible(values)
        if len(values) > len(self._values):
            more = np.zeros((len(values) - len(self._values), self._counters), np.uint64)
            self._values = np.concatenate([self._values, more])
        np.copyto(self._values, values, where=good[:, None])
        self._senseless = int(len(good) - good.sum())

    def _is_plausible(self, values: NDArray[np.uint64]) -> NDArray[np.bool_]:
        allocs, frees = values[:, 0], values[:, 1]
        plausible = (frees <= allocs) & (allocs < _COUNT_MAX)
        if self._counters == 4:
            sizes = self._buckets.sizes.astype(np.uint64)
            plausible &= (values[:, 2] == allocs * sizes) & (values[:, 3] == frees * sizes)
        return plausible

    @property
    def damaged(self) -> int:
        """The number of buckets with an invalid list or invalid counters."""
        return self._buckets.broken + self._senseless

    @property
    def left_out(self) -> int:
        """How many readings ended at a limit, of buckets or of memory."""
        return self._buckets.left_out

    @property
    def is_trustworthy(self) -> bool:
        """Whether the data agrees with the layout: nearly all of it is consistent."""
        return self.damaged <= max(1, _TORN_SHARE * len(self._buckets))
