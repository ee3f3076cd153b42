"""The list of the buckets of a heap profile, and the stack and block size of each.

A bucket is of one stack and one size: {next, allnext, typ, hash, size, nstk} of a word each, nstk return
addresses, then its record (runtime/mprof.go). `allnext` links all buckets. They stay where they are, and new
ones come at the head of the list, so that each is read once.

The runtime places buckets side by side in chunks. So memory is read in windows, every word of a window is
looked at as if a bucket began there, and the list then chooses which of them are buckets.

The memory is the program's own, and anything may be in it: the list ends at a limit, and at what was seen
before. A reading takes a bounded part of the processor's time; the next one continues where it stopped.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Set
from functools import cache
from itertools import repeat

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.runtimes.go.memory import ProcessMemory

__all__ = ["BucketList"]

_WORD_BYTES = 8
_HEADER_WORDS = 6
_ALL_NEXT, _KIND, _SIZE, _DEPTH = 1, 2, 4, 5
_MEMORY_PROFILE = 1
_DEPTH_MAX = 1024
_WINDOW_BYTES, _PAGE_BYTES = 256 << 10, 4096
# The longest bucket that begins in a window is read with it.
_BUCKET_BYTES = (_HEADER_WORDS + _DEPTH_MAX) * _WORD_BYTES
_WINDOW_WORDS_MAX = (_WINDOW_BYTES + _PAGE_BYTES + _BUCKET_BYTES) // _WORD_BYTES
_WINDOWS_MAX, _CANDIDATES_MAX = 32, 200_000
# What a program can make the daemon keep, and what a reading may take of the processor.
_STACKS_LIMIT_BYTES = 64 << 20
_WALK_LIMIT_NS = 1_000_000_000
_CHECKED_EVERY = 256
_SIZE_MAX = 1 << 47

_Words = NDArray[np.uint64]

_MULTIPLIER, _SHIFT = np.uint64(0xC6A4A7935BD1E995), np.uint64(47)
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)
_NONE = np.zeros(0, np.uint64)


class BucketList:
    """The buckets of one process as far as they were read, in the order of reading.

    `records` are the addresses of what follows the stacks, `sizes` those of a block, in bytes, `rows` say
    which of `stack_ids` a bucket is of. `broken` counts ends of the list that make no sense, `left_out`
    those at a limit.
    """

    def __init__(
        self,
        memory: ProcessMemory,
        head: int,
        buckets_max: int,
        spent_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`head` is the address of mbuckets. At most `buckets_max` are read.

        `spent_ns` is the processor time of the thread that reads.
        """
        self.records = np.zeros(0, np.uint64)
        self.sizes = np.zeros(0, np.int64)
        self.rows = np.zeros(0, np.intp)
        self.broken = self.left_out = 0
        self._memory = memory
        self._head_at = head
        self._buckets_max = buckets_max
        self._spent_ns = spent_ns
        self._last = 0
        # Where readings stopped for want of time, the last of them at the end.
        self._rest: list[int] = []
        self._known: set[int] = set()
        self._stacks = _Stacks()

    def __len__(self) -> int:
        return len(self.records)

    @property
    def stack_ids(self) -> list[int]:
        """The hash of each stack, never 0."""
        return self._stacks.ids

    def stack(self, stack_id: int) -> tuple[int, ...]:
        """The return addresses of a stack, one for each logical frame, innermost first; none if unknown."""
        return self._stacks.stack(stack_id)

    def some_stacks(self, count: int) -> list[tuple[int, ...]]:
        """Some of the stacks that were read."""
        return [self.stack(stack_id) for stack_id in self.stack_ids[:count]]

    @property
    def is_unfinished(self) -> bool:
        """Whether a reading stopped for want of time: the next one continues it."""
        return bool(self._rest)

    def read_new(self) -> bool:
        """Read the list from its head to the first known bucket, then what earlier readings had no time for.

        Returns whether there were new buckets.
        """
        head = self._memory.number(self._head_at) or 0
        before, end_ns = len(self), self._spent_ns() + _WALK_LIMIT_NS
        if head != self._last:
            self._rest.append(head)
        self._last = head
        while self._rest:
            if self._stacks.size_bytes >= _STACKS_LIMIT_BYTES:
                self.left_out += 1
                self._rest.clear()
                break
            address = self._read_some(self._rest.pop(), end_ns)
            if address:
                self._rest.append(address)
            if self._spent_ns() >= end_ns:
                break
        return len(self) > before

    def _read_some(self, address: int, end_ns: int) -> int:
        """Read buckets from an address on, in so many windows; returns the next address, 0 at the end."""
        windows, known = _Windows(self._memory, self._known), self._known
        room, count, checked_at = self._buckets_max - len(self), 0, _CHECKED_EVERY
        while address and address not in known:
            at = windows.find(address)
            if at is None and windows.is_full:
                break
            if at is None:
                self.broken += 1
                address = 0
            elif count >= room:
                self.left_out += 1
                address = 0
            elif count >= checked_at and self._spent_ns() >= end_ns:
                break
            else:
                if count >= checked_at:
                    checked_at = count + _CHECKED_EVERY
                window, place = at
                run, address = window.take(place, min(room - count, _CHECKED_EVERY))
                count += len(run)
                known.update(run)
        buckets = windows.taken()
        self.broken += count - len(buckets.records)
        self._take(buckets)
        return 0 if address in known else address

    def _take(self, buckets: _Buckets) -> None:
        """Keep what was read."""
        self.records = np.concatenate([self.records, buckets.records])
        self.sizes = np.concatenate([self.sizes, buckets.sizes])
        rows = self._stacks.rows_of(buckets)
        self.rows = np.concatenate([self.rows, rows])


class _Stacks:
    """Different stacks, a row each."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._rows: dict[int, int] = {}
        self._words = np.zeros(0, np.uint64)
        self._ends = np.zeros(1, np.intp)

    @property
    def size_bytes(self) -> int:
        """How much memory their words take."""
        return int(self._ends[-1]) * _WORD_BYTES

    def stack(self, stack_id: int) -> tuple[int, ...]:
        """The words of a stack; none if it is not known."""
        row = self._rows.get(stack_id)
        return () if row is None else tuple(self._words[self._ends[row] : self._ends[row + 1]].tolist())

    def rows_of(self, buckets: _Buckets) -> NDArray[np.intp]:
        """The rows of the stacks of buckets."""
        words, depths = buckets.stacks, buckets.depths
        ids, first, which = np.unique(buckets.hashes, return_index=True, return_inverse=True)
        rows = np.fromiter(map(self._rows.get, ids.tolist(), repeat(-1)), np.intp, len(ids))
        new = np.flatnonzero(rows < 0)
        new = new[np.argsort(first[new])]
        rows[new] = np.arange(len(self.ids), len(self.ids) + len(new))
        new_ids, chosen = ids[new].tolist(), first[new]
        self._rows.update(zip(new_ids, rows[new].tolist(), strict=True))
        self.ids += new_ids
        if len(chosen) < len(depths):
            words = words[_spread((np.cumsum(depths) - depths)[chosen], depths[chosen])]
        self._ends = np.concatenate([self._ends, self._ends[-1] + np.cumsum(depths[chosen])])
        self._keep(words)
        return rows[which]

    def _keep(self, words: _Words) -> None:
        end = int(self._ends[-1])
        if end > len(self._words):
            more = np.empty(max(end, 2 * len(self._words)), np.uint64)
            more[: end - len(words)] = self._words[: end - len(words)]
            self._words = more
        self._words[end - len(words) : end] = words


def _spread(starts: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """The numbers from each start on, so many of each."""
    ends = np.cumsum(counts)
    spread = np.repeat(starts - ends + counts, counts)
    spread += np.arange(len(spread))
    return spread


def _hashes(words: _Words, depths: NDArray[np.intp]) -> _Words:
    """A hash of each stack of a window, never 0.

    It is the sum of the words, mixed as in MurmurHash64A, times powers of an odd number. The powers begin
    with that of the place in `words`, which is divided out. Who makes stacks with the same hash gets one call
    site of them, in his own process.
    """
    powers, inverse = _powers(_BASE), _powers(_INVERSE)
    mixed = words * _MULTIPLIER
    mixed ^= mixed >> _SHIFT
    mixed *= powers[1 : len(words) + 1]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
    ends = np.cumsum(depths)
    starts = ends - depths
    hashes: _Words = (sums[ends] - sums[starts]) * inverse[starts] + depths.astype(np.uint64)
    hashes ^= hashes >> _SHIFT
    hashes *= _MULTIPLIER
    hashes ^= hashes >> _SHIFT
    return np.maximum(hashes, np.uint64(1))


@cache
def _powers(base: int) -> _Words:
    """The powers of a number, of 64 bits, from 0 to as many as a window has words."""
    powers: _Words = np.full(_WINDOW_WORDS_MAX + 1, base, np.uint64)
    powers[0] = 1
    return np.cumprod(powers, dtype=np.uint64)


class _Buckets(Struct, frozen=True):
    """What was read of buckets. `stacks` are the words of all stacks, `depths` how many each has."""

    records: _Words
    sizes: NDArray[np.int64]
    stacks: _Words
    depths: NDArray[np.intp]
    hashes: _Words


class _Window:
    """A piece of the memory from `start` to `end`, of which every word may begin a bucket.

    A bucket whose header and stack were not read whole is none.
    """

    def __init__(self, start: int, words: _Words, end: int, known: Set[int]) -> None:
        """`known` buckets were read before."""
        self._start, self._words = start, words
        count = max(0, min(len(words) - _HEADER_WORDS + 1, (end - start) // _WORD_BYTES))
        places = np.flatnonzero(words[_KIND : _KIND + count] == _MEMORY_PROFILE)
        # Counters are often 1, too: of these, few stand behind what is an address of a bucket.
        places = places[words[places + _ALL_NEXT] % _WORD_BYTES == 0]
        depths = words[places + _DEPTH]
        places = places[depths <= np.minimum(_DEPTH_MAX, len(words) - _HEADER_WORDS - places)]
        addresses = (start + places * _WORD_BYTES).astype(np.uint64)
        self._next = words[places + _ALL_NEXT]
        # Most buckets lie beside the next one, so that few have to be searched for.
        nearest = np.minimum(np.searchsorted(addresses, self._next), max(0, len(addresses) - 1))
        self._following = np.where(addresses[nearest] == self._next, nearest, -1).tolist()
        self._addresses: list[int] = addresses.tolist()
        self._places = places
        self._seen = bytearray(map(known.__contains__, self._addresses))
        self._taken: list[int] = []

    def __len__(self) -> int:
        return len(self._addresses)

    def place_of(self, address: int) -> int | None:
        """The number of the bucket that may begin at an address."""
        place = bisect_left(self._addresses, address)
        return place if place < len(self) and self._addresses[place] == address else None

    def take(self, place: int, limit: int) -> tuple[list[int], int]:
        """The addresses of a bucket and of those that follow in this window, and where the list goes on.

        Each is taken once.
        """
        seen, following, taken = self._seen, self._following, self._taken
        before = len(taken)
        taken.append(place)
        seen[place] = True
        last = place
        while (place := following[last]) >= 0 and not seen[place] and len(taken) - before < limit:
            seen[place] = True
            taken.append(place)
            last = place
        addresses = self._addresses
        return [addresses[place] for place in taken[before:]], int(self._next[last])

    def taken(self) -> _Buckets:
        """Those that were taken, as far as there is room for them: real ones do not overlap."""
        words, places = self._words, self._places[self._taken]
        depths = words[places + _DEPTH].astype(np.intp)
        places = places[np.cumsum(depths + _HEADER_WORDS) <= len(words)]
        depths = depths[: len(places)]
        stacks = words[_spread(places + _HEADER_WORDS, depths)]
        records = self._start + (places + _HEADER_WORDS + depths) * _WORD_BYTES
        sizes = np.minimum(words[places + _SIZE], np.uint64(_SIZE_MAX)).astype(np.int64)
        return _Buckets(records.astype(np.uint64), sizes, stacks, depths, _hashes(stacks, depths))


class _Windows:
    """Windows that a list of buckets leads through."""

    def __init__(self, memory: ProcessMemory, known: Set[int]) -> None:
        """`known` buckets were read before."""
        self._memory = memory
        self._known = known
        self._windows: dict[int, list[_Window]] = {}
        self._count = self._candidates = 0

    @property
    def is_full(self) -> bool:
        """Whether no more will be read."""
        return self._count >= _WINDOWS_MAX or self._candidates >= _CANDIDATES_MAX

    def find(self, address: int) -> tuple[_Window, int] | None:
        """The bucket that may begin at an address; reads the memory around it, if there is room."""
        for window in self._windows.get(address & -_WINDOW_BYTES, ()):
            place = window.place_of(address)
            if place is not None:
                return window, place
        read = None if self.is_full or address % _WORD_BYTES else self._read_around(address)
        place = read.place_of(address) if read is not None else None
        return (read, place) if read is not None and place is not None else None

    def _read_around(self, address: int) -> _Window | None:
        base = address & -_WINDOW_BYTES
        start, size_bytes = base, _WINDOW_BYTES + _BUCKET_BYTES
        data = self._memory.read(start, size_bytes)
        if address - base >= len(data):
            # It begins before what is mapped.
            start = address & -_PAGE_BYTES
            data = self._memory.read(start, base + size_bytes - start)
        words = np.frombuffer(data, np.uint64, len(data) // _WORD_BYTES)
        if not len(words):
            return None
        window = _Window(start, words, base + _WINDOW_BYTES, self._known)
        self._count += 1
        self._windows.setdefault(base, []).append(window)
        self._candidates += len(window)
        return window

    def taken(self) -> _Buckets:
        """The buckets that were taken, window by window."""
        found = [window.taken() for windows in self._windows.values() for window in windows]
        return _Buckets(
            np.concatenate([_NONE, *(one.records for one in found)]),
            np.concatenate([_NONE.astype(np.int64), *(one.sizes for one in found)]),
            np.concatenate([_NONE, *(one.stacks for one in found)]),
            np.concatenate([_NONE.astype(np.intp), *(one.depths for one in found)]),
            np.concatenate([_NONE, *(one.hashes for one in found)]),
        )
