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
from collections.abc import Callable
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
_WINDOWS_MAX, _CANDIDATES_MAX = 32, 200_000
# What a program can make the daemon keep, and what a reading may take of the processor.
_STACKS_LIMIT_BYTES = 64 << 20
_WALK_LIMIT_NS = 1_000_000_000
_CHECKED_EVERY = 256
_SIZE_MAX = 1 << 47

_Words = NDArray[np.uint64]

_MULTIPLIER, _SHIFT = np.uint64(0xC6A4A7935BD1E995), np.uint64(47)
_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = pow(int(_BASE), -1, 1 << 64)


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
        windows, known = _Windows(self._memory), self._known
        found: list[int] = []
        following, room = windows.following, self._buckets_max - len(self)
        take = found.append
        while address and address not in known:
            after = following.get(address)
            if after is None:
                if windows.is_full:
                    break
                if not windows.read(address):
                    self.broken += 1
                    address = 0
            elif len(found) >= room:
                self.left_out += 1
                address = 0
            elif found and not len(found) % _CHECKED_EVERY and self._spent_ns() >= end_ns:
                break
            else:
                take(address)
                known.add(address)
                address = after
        self._take(windows.buckets(found))
        return 0 if address in known else address

    def _take(self, buckets: _Buckets) -> None:
        """Keep what was read."""
        self.records = np.concatenate([self.records, buckets.records])
        self.sizes = np.concatenate([self.sizes, buckets.sizes])
        rows = self._stacks.rows_of(buckets.stacks, buckets.depths)
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
        return self._words.nbytes

    def stack(self, stack_id: int) -> tuple[int, ...]:
        """The words of a stack; none if it is not known."""
        row = self._rows.get(stack_id)
        return () if row is None else tuple(self._words[self._ends[row] : self._ends[row + 1]].tolist())

    def rows_of(self, words: _Words, depths: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows of stacks, one behind the other in `words`, that have so many words each."""
        ids, first, which = np.unique(_hashes(words, depths), return_index=True, return_inverse=True)
        rows = np.fromiter(map(self._rows.get, ids.tolist(), repeat(-1)), np.intp, len(ids))
        new = np.flatnonzero(rows < 0)
        new = new[np.argsort(first[new])]
        rows[new] = range(len(self.ids), len(self.ids) + len(new))
        new_ids, chosen = ids[new].tolist(), first[new]
        self._rows.update(zip(new_ids, rows[new].tolist(), strict=True))
        self.ids += new_ids
        if len(chosen) < len(depths):
            words = words[_spread((np.cumsum(depths) - depths)[chosen], depths[chosen])]
        self._ends = np.concatenate([self._ends, len(self._words) + np.cumsum(depths[chosen])])
        self._words = np.concatenate([self._words, words])
        return rows[which]


def _spread(starts: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """The numbers from each start on, so many of each."""
    ends = np.cumsum(counts)
    spread = np.repeat(starts - ends + counts, counts)
    spread += np.arange(len(spread))
    return spread


def _hashes(words: _Words, depths: NDArray[np.intp]) -> _Words:
    """A hash of each stack, never 0.

    It is the sum of the words, mixed as in MurmurHash64A, times powers of an odd number. The powers begin
    with that of the place in `words`, which is divided out. Who makes stacks with the same hash gets one call
    site of them, in his own process.
    """
    mixed = words * _MULTIPLIER
    mixed ^= mixed >> _SHIFT
    mixed *= np.cumprod(np.full(len(words), _BASE))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
    ends = np.cumsum(depths)
    starts = ends - depths
    hashes: _Words = (sums[ends] - sums[starts]) * _power(_INVERSE, starts) + depths.astype(np.uint64)
    hashes ^= hashes >> _SHIFT
    hashes *= _MULTIPLIER
    hashes ^= hashes >> _SHIFT
    return np.maximum(hashes, np.uint64(1))


def _power(base: int, exponents: NDArray[np.intp]) -> _Words:
    """base ** exponents, of 64 bits."""
    powers = np.ones(len(exponents), np.uint64)
    for bit in range(int(exponents.max(initial=0)).bit_length()):
        powers[exponents >> bit & 1 > 0] *= np.uint64(pow(base, 1 << bit, 1 << 64))
    return powers


class _Buckets(Struct, frozen=True):
    """What was read of buckets. `stacks` are the words of all stacks, `depths` how many each has."""

    records: _Words
    sizes: NDArray[np.int64]
    stacks: _Words
    depths: NDArray[np.intp]


class _Windows:
    """Pieces of the memory. `following` has for each address of what may be a bucket that of the next one.

    A bucket whose header and stack were not read whole is none.
    """

    def __init__(self, memory: ProcessMemory) -> None:
        self.following: dict[int, int] = {}
        self._memory = memory
        self._read: dict[int, _Words] = {}

    @property
    def is_full(self) -> bool:
        """Whether no more will be read."""
        return len(self._read) >= _WINDOWS_MAX or len(self.following) >= _CANDIDATES_MAX

    def read(self, address: int) -> bool:
        """Read the memory around an address; returns whether there may be a bucket."""
        base = address & -_WINDOW_BYTES
        if self.is_full or address % _WORD_BYTES:
            return False
        start, size_bytes = base, _WINDOW_BYTES + _BUCKET_BYTES
        data = self._memory.read(start, size_bytes)
        if address - base >= len(data):
            # It begins before what is mapped.
            start = address & -_PAGE_BYTES
            data = self._memory.read(start, base + size_bytes - start)
        words = np.frombuffer(data, np.uint64, len(data) // _WORD_BYTES)
        if len(words):
            self._read[start] = words
            self._look_through(start, words, base + _WINDOW_BYTES)
        return address in self.following

    def _look_through(self, start: int, words: _Words, end: int) -> None:
        """Take every word before `end` for the beginning of a bucket, where that makes sense."""
        count = min(len(words) - _HEADER_WORDS + 1, (end - start) // _WORD_BYTES)
        if count <= 0:
            return
        places = np.flatnonzero(words[_KIND : _KIND + count] == _MEMORY_PROFILE)
        depths = words[places + _DEPTH]
        places = places[depths <= np.minimum(_DEPTH_MAX, len(words) - _HEADER_WORDS - places)]
        addresses = start + places * _WORD_BYTES
        self.following.update(zip(addresses.tolist(), words[places + _ALL_NEXT].tolist(), strict=True))

    def buckets(self, addresses: list[int]) -> _Buckets:
        """The buckets at addresses that are in the windows."""
        starts = np.array(sorted(self._read), np.int64)
        pieces = [self._read[start] for start in starts.tolist()]
        words = np.concatenate([*pieces, np.zeros(0, np.uint64)])
        ends = np.cumsum([0, *map(len, pieces)])
        at = np.array(addresses, np.int64)
        window = np.searchsorted(starts, at, side="right") - 1
        places = ends[window] + (at - starts[window]) // _WORD_BYTES if len(at) else at
        # Windows overlap, and what is read twice may have changed.
        inside = places + _HEADER_WORDS <= ends[window + 1]
        at, places, window = at[inside], places[inside], window[inside]
        room = ends[window + 1] - places - _HEADER_WORDS
        depths = np.minimum(words[places + _DEPTH], room.astype(np.uint64)).astype(np.intp)
        records = (at + (_HEADER_WORDS + depths) * _WORD_BYTES).astype(np.uint64)
        sizes = np.minimum(words[places + _SIZE], np.uint64(_SIZE_MAX)).astype(np.int64)
        return _Buckets(records, sizes, words[_spread(places + _HEADER_WORDS, depths)], depths)
