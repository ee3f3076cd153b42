"""The runtime's heap profile: what is live as of the last collection, by stack, read from memory.

A bucket is of one stack and one size: {next, allnext, typ, hash, size, nstk} of a word each, nstk return
addresses, then the record whose first part, `active`, is the published profile (runtime/mprof.go). Buckets
stay where they are, and new ones come at the head of the list. So a reading walks the new ones, and reads the
counters of all.

The memory is the program's own, and anything may be in it: lists end at a limit and at what was seen before,
counters that contradict one another are left as they were, numbers are cut to what 64 bits hold.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bpfleakd.runtimes.go.memory import ProcessMemory, Records

__all__ = ["BUCKETS_MAX", "HeapProfile", "SampledBuckets"]

BUCKETS_MAX = 500_000
_HEADER = struct.Struct("<8xQQ8xQQ")  # allnext, typ, size, nstk
_HEADER_BYTES = 48
_MEMORY_PROFILE = 1
_DEPTH_MAX = 1024
_WORD_BYTES = 8
# Most buckets that stick out of a window end so soon behind it.
_WINDOW_BYTES, _BUCKET_BYTES, _PAGE_BYTES = 32 << 10, 512, 4096
_WINDOWS_MAX = 64
# What a program can make the daemon keep, and how long it can hold it up.
_STACKS_LIMIT_BYTES = 64 << 20
_WALK_LIMIT_S = 1.0
_CHECKED_EVERY = 256
_FLUSHED = 1
# A reading is whole if the next finds the same; a program that collects all the time is taken as it is.
_READINGS_MAX = 3
# So many contradictions may be readings in the middle of a change. More are another structure.
_TORN_SHARE = 0.05
_RATE_MAX = 1 << 40
_SIZE_MAX = 1 << 47
_COUNT_MAX = np.uint64(1 << 48)


@dataclass(frozen=True, slots=True)
class SampledBuckets:
    """The profile as it is in the process, a row a bucket: what pprof calls raw.

    Bucket i is of stack `rows[i]` of `stack_ids`, a stack's hash each. `allocs` and `frees` count blocks of
    `sizes` bytes. One block in about `rate_bytes` is in the sample.
    """

    stack_ids: list[int]
    rows: NDArray[np.intp]
    sizes: NDArray[np.int64]
    allocs: NDArray[np.int64]
    frees: NDArray[np.int64]
    rate_bytes: int


class HeapProfile:
    """The profile of one process.

    `left_out` counts readings that ended at a limit (of buckets, of memory, of time).
    """

    def __init__(
        self,
        memory: ProcessMemory,
        counters: int,
        variables: tuple[int, int, int],
        buckets_max: int = BUCKETS_MAX,
    ) -> None:
        """`variables` are the addresses of mbuckets, mProfCycle and MemProfileRate.

        A record begins with so many `counters` (Layout). At most `buckets_max` are read.
        """
        self._memory = memory
        self._counters = counters
        self._at = variables
        self._buckets_max = buckets_max
        self.left_out = 0
        self._broken = self._senseless = self._stack_bytes = 0
        self._head = 0
        self._known: set[int] = set()
        self._addresses: list[int] = []
        self._sizes: list[int] = []
        self._sites: list[int] = []
        self._rows: dict[int, int] = {}
        self._stacks: list[bytes] = []
        self._records: Records | None = None
        self._values = np.zeros((0, counters), np.uint64)
        self._seen: tuple[int | None, int] = (None, 0)

    @property
    def rate_bytes(self) -> int:
        """MemProfileRate now: one block in so many bytes is sampled; 0: none, or it makes no sense."""
        rate = self._memory.number(self._at[2]) or 0
        return rate if rate <= _RATE_MAX else 0

    @property
    def cycle(self) -> int | None:
        """The number of the collection of the last reading; it wraps around."""
        return self._seen[0]

    def stack(self, stack_id: int) -> tuple[int, ...]:
        """The return addresses of a stack, one for each logical frame, innermost first; none if unknown."""
        row = self._rows.get(stack_id)
        if row is None:
            return ()
        stack = self._stacks[row]
        return struct.unpack(f"<{len(stack) // _WORD_BYTES}Q", stack)

    def some_stacks(self, count: int) -> list[tuple[int, ...]]:
        """Some of the stacks that were read."""
        return [self.stack(stack_id) for stack_id in islice(self._rows, count)]

    def read(self) -> SampledBuckets | None:
        """The profile, if it may have changed since the last call."""
        cycle = self._memory.number(self._at[1], 4)
        if cycle is None or not self._is_news(cycle):
            return None
        return self.buckets()

    def buckets(self) -> SampledBuckets:
        """Read the profile as it is now."""
        rate_bytes = self.rate_bytes
        self._read_whole()
        allocs, frees = (self._values[:, column].astype(np.int64) for column in (0, 1))
        sizes = np.array(self._sizes, np.int64)
        return SampledBuckets(
            list(self._rows), np.array(self._sites, np.intp), sizes, allocs, frees, rate_bytes
        )

    def _is_news(self, cycle: int) -> bool:
        """Whether to read. runtime.GC publishes again when it has swept, in the same cycle: twice then."""
        before, times = self._seen
        if cycle != before:
            # Not before it is published, but a program that never gets there is read anyway.
            self._seen = cycle, 0 if cycle & _FLUSHED or before is None else -1
            return bool(cycle & _FLUSHED) or before is None
        if times >= 1:
            return False
        self._seen = cycle, times + 1
        return True

    def _read_whole(self) -> None:
        self._find_new()
        self._take(self._read_counters())
        for _ in range(_READINGS_MAX):
            before = self._values.copy()
            self._take(self._read_counters())
            if np.array_equal(before, self._values):
                return

    def _read_counters(self) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        if self._records is None:
            self._records = Records(np.array(self._addresses, np.uint64), self._counters)
        return self._records.read(self._memory)

    def _take(self, reading: tuple[NDArray[np.uint64], NDArray[np.bool_]]) -> None:
        values, is_read = reading
        good = is_read & self._is_plausible(values)
        if len(values) > len(self._values):
            more = np.zeros((len(values) - len(self._values), self._counters), np.uint64)
            self._values = np.concatenate([self._values, more])
        self._values[good] = values[good]
        self._senseless = int(len(good) - good.sum())

    def _is_plausible(self, values: NDArray[np.uint64]) -> NDArray[np.bool_]:
        allocs, frees = values[:, 0], values[:, 1]
        plausible = (frees <= allocs) & (allocs < _COUNT_MAX)
        if self._counters == 4:
            sizes = np.array(self._sizes, np.uint64)
            plausible &= (values[:, 2] == allocs * sizes) & (values[:, 3] == frees * sizes)
        return plausible

    @property
    def damaged(self) -> int:
        """Buckets whose list or whose counters make no sense."""
        return self._broken + self._senseless

    @property
    def is_trustworthy(self) -> bool:
        """Whether what was read agrees with the layout: as good as all of it makes sense."""
        return self.damaged <= max(1, _TORN_SHARE * len(self._addresses))

    def _find_new(self) -> None:
        """Walk the list from its head to the first known bucket."""
        head = address = self._memory.number(self._at[0]) or 0
        known, last = self._known, self._head
        addresses, sizes, sites = self._addresses, self._sizes, self._sites
        windows: dict[int, tuple[int, bytes]] = {}
        start, window, limit = 0, b"", -1
        deadline_s = time.monotonic() + _WALK_LIMIT_S
        number = before = len(addresses)
        while address and address not in known and address != last:
            number += 1
            is_late = not number % _CHECKED_EVERY and time.monotonic() > deadline_s
            if is_late or number > self._buckets_max or self._stack_bytes >= _STACKS_LIMIT_BYTES:
                self.left_out += 1
                break
            offset = address - start
            if not 0 <= offset <= limit:
                # Each lies below the one before: every P of the runtime fills separate chunks, upwards.
                start, window = windows.get(address & -_WINDOW_BYTES, (0, b""))
                if not 0 <= address - start <= len(window) - _HEADER_BYTES:
                    start, window = self._window(windows, address)
                offset, limit = address - start, len(window) - _HEADER_BYTES
            if not 0 <= offset <= limit or address % _WORD_BYTES:
                self._broken += 1
                break
            following, kind, size, depth = _HEADER.unpack_from(window, offset)
            begin = offset + _HEADER_BYTES
            end = begin + depth * _WORD_BYTES
            if kind != _MEMORY_PROFILE or depth > _DEPTH_MAX:
                self._broken += 1
                break
            stack = window[begin:end]
            if end > len(window):
                stack = self._memory.read(start + begin, end - begin)
            known.add(address)
            addresses.append(start + end)
            sizes.append(size if size < _SIZE_MAX else _SIZE_MAX)
            sites.append(self._row_of(stack))
            address = following
        self._head = head
        if len(self._addresses) != before:
            self._records = None

    def _window(self, windows: dict[int, tuple[int, bytes]], address: int) -> tuple[int, bytes]:
        """Read the memory around an address; `windows` are those read lately."""
        if len(windows) >= _WINDOWS_MAX:
            windows.clear()
        start = base = address & -_WINDOW_BYTES
        data = self._memory.read(base, _WINDOW_BYTES + _BUCKET_BYTES)
        if address - base >= len(data):
            # It begins before what is mapped.
            start = address & -_PAGE_BYTES
            data = self._memory.read(start, base + _WINDOW_BYTES + _BUCKET_BYTES - start)
        windows[base] = start, data
        return start, data

    def _row_of(self, stack: bytes) -> int:
        stack_id = int.from_bytes(blake2b(stack, digest_size=8).digest(), "little")
        row = self._rows.get(stack_id)
        if row is None:
            row = self._rows[stack_id] = len(self._stacks)
            self._stacks.append(stack)
            self._stack_bytes += len(stack)
        return row
