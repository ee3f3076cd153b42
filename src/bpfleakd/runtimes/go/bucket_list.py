"""The list of the buckets of a heap profile, and the stack and block size of each.

A bucket belongs to one stack and one size: {next, allnext, typ, hash, size, nstk} of a word each, nstk return
addresses, then its record (runtime/mprof.go). `allnext` links all buckets. They do not move, and new ones are
added at the head of the list, so each is read once.

The runtime places buckets side by side in chunks. So memory is read in windows. The list is followed there
some thousand links at a time, and the buckets are then checked and decoded together: a step in Python is
expensive, so it only follows links.

The program controls this memory: the list ends at a limit, and at known buckets. A reading takes a bounded
part of the processor's time; the next one continues where it stopped.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from itertools import count, repeat
from typing import Generic, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.runtimes.go.memory import ProcessMemory

_WORD_BYTES, _WORD_SHIFT = 8, 3
_HEADER_WORDS = 6
_ALL_NEXT, _KIND, _SIZE, _DEPTH = 1, 2, 4, 5
_MEMORY_PROFILE = 1
_DEPTH_MAX = 1024
_WINDOW_BYTES, _PAGE_BYTES = 256 << 10, 4096
# The longest bucket that begins in a window is read with it.
_BUCKET_BYTES = (_HEADER_WORDS + _DEPTH_MAX) * _WORD_BYTES
_WINDOW_WORDS = (_WINDOW_BYTES + _BUCKET_BYTES) // _WORD_BYTES
_WINDOWS_MAX = 32
_STEPS_MAX = 4096
# Limits for the memory of the daemon, and for the processor time of a reading.
_STACKS_LIMIT_BYTES = 64 << 20
_WALK_LIMIT_NS = 1_000_000_000
_SIZE_MAX = 1 << 47

_Words = NDArray[np.uint64]
_Number = TypeVar("_Number", bound=np.generic)

_MULTIPLIER, _SHIFT = np.uint64(0xC6A4A7935BD1E995), np.uint64(47)
_BASE = np.uint64(0x9E3779B97F4A7C15)
_POWERS = np.cumprod(np.full(_DEPTH_MAX, _BASE))


class BucketList:
    """The buckets of one process read so far, in the order of reading.

    `broken` counts invalid ends of the list, `left_out` those at a limit.
    """

    def __init__(
        self,
        memory: ProcessMemory,
        head: int,
        buckets_max: int,
        spent_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`head` is the address of mbuckets. Reads at most `buckets_max`.

        `spent_ns` is the processor time of the thread that reads.
        """
        self.broken = self.left_out = 0
        self._memory = memory
        self._head_at = head
        self._buckets_max = buckets_max
        self._spent_ns = spent_ns
        self._last = 0
        # Where readings stopped for lack of time; the latest is last.
        self._rest: list[int] = []
        # 0 ends the list, like a known bucket.
        self._known = {0}
        self._stacks = _Stacks()
        self._records, self._sizes, self._rows = _Growing(np.uint64), _Growing(np.int64), _Growing(np.intp)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def records(self) -> _Words:
        """The address of each bucket's record."""
        return self._records.values

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The size of each bucket's blocks, in bytes."""
        return self._sizes.values

    @property
    def rows(self) -> NDArray[np.intp]:
        """The stack of each bucket, as an index of `stack_ids`."""
        return self._rows.values

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
        """Whether a reading stopped for lack of time, so the next one continues it."""
        return bool(self._rest)

    def read_new(self) -> bool:
        """Read the list from its head to the first known bucket, then what earlier readings had no time for.

        Returns whether there were new buckets.
        """
        head = self._memory.number(self._head_at) or 0
        before, end_ns = len(self), self._spent_ns() + _WALK_LIMIT_NS
        if head != self._last and head not in self._known:
            self._rest.append(head)
        self._last = head
        windows = _Windows(self._memory)
        while self._rest:
            if len(self) >= self._buckets_max or self._stacks.size_bytes >= _STACKS_LIMIT_BYTES:
                self.left_out += 1
                self._rest.clear()
                break
            address = self._read_some(windows, self._rest.pop())
            if address not in self._known:
                self._rest.append(address)
            if self._spent_ns() >= end_ns:
                break
        return len(self) > before

    def _read_some(self, windows: _Windows, address: int) -> int:
        """Read buckets from an address on, which is not known; returns the next address, 0 at the end."""
        known = self._known
        steps = min(_STEPS_MAX, self._buckets_max - len(self))
        addresses, following = windows.follow(address, known, steps)
        if len(set(addresses)) < len(addresses):
            # The list has a cycle.
            addresses, following = list(dict.fromkeys(addresses)), 0
        buckets = windows.buckets(addresses)
        count = len(buckets.records)
        if not count or count < len(addresses):
            self.broken, following = self.broken + 1, 0
        known.update(addresses[:count])
        self._records.add(buckets.records)
        self._sizes.add(buckets.sizes)
        self._rows.add(self._stacks.rows_of(buckets.stacks, buckets.depths))
        return following


class _Growing(Generic[_Number]):
    """An array that grows. Additions are joined on access."""

    def __init__(self, kind: type[_Number]) -> None:
        self._pieces = [np.zeros(0, kind)]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, numbers: NDArray[_Number]) -> None:
        """Append numbers."""
        self._pieces.append(numbers)
        self._count += len(numbers)

    @property
    def values(self) -> NDArray[_Number]:
        """All of them."""
        if len(self._pieces) > 1:
            self._pieces = [np.concatenate(self._pieces)]
        return self._pieces[0]


class _Stacks:
    """Distinct stacks, one row each."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        # The row of a hash; an unknown hash gets the next row.
        self._rows: defaultdict[int, int] = defaultdict(count().__next__)
        self._words, self._ends = _Growing(np.uint64), _Growing(np.intp)

    @property
    def size_bytes(self) -> int:
        """The memory of their words."""
        return len(self._words) * _WORD_BYTES

    def stack(self, stack_id: int) -> tuple[int, ...]:
        """The words of a stack; none if it is not known."""
        row = self._rows.get(stack_id)
        if row is None:
            return ()
        ends = self._ends.values
        return tuple(self._words.values[ends[row - 1] if row else 0 : ends[row]].tolist())

    def rows_of(self, words: _Words, depths: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows of stacks, which follow one another in `words`, with so many words each."""
        hashes, before = _hashes(words, depths).tolist(), len(self.ids)
        rows = np.fromiter(map(self._rows.__getitem__, hashes), np.intp, len(hashes))
        # New rows ascend: a new stack's row exceeds all rows before it.
        highest = np.maximum.accumulate(np.concatenate([np.array([before - 1]), rows]))
        chosen = np.flatnonzero(rows > highest[:-1])
        self.ids += map(hashes.__getitem__, chosen.tolist())
        if len(chosen) < len(depths):
            words = words[_spread((np.cumsum(depths) - depths)[chosen], depths[chosen])]
        self._ends.add(len(self._words) + np.cumsum(depths[chosen]))
        self._words.add(words)
        return rows


def _spread(starts: NDArray[np.intp], counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """From each start, `counts` consecutive numbers."""
    ends = np.cumsum(counts)
    spread = np.repeat(starts - ends + counts, counts)
    spread += np.arange(len(spread))
    return spread


def _hashes(words: _Words, depths: NDArray[np.intp]) -> _Words:
    """A hash of each stack, never 0.

    It is the sum of the words, mixed as in MurmurHash64A, times powers of an odd number, which tell the
    places in the stack apart. A process that creates stacks with the same hash gets one call site for them,
    in its own report.
    """
    mixed = words * _MULTIPLIER
    mixed ^= mixed >> _SHIFT
    mixed *= _POWERS[_spread(np.zeros_like(depths), depths)]
    hashes: _Words = depths.astype(np.uint64)
    filled = depths > 0
    hashes[filled] += np.add.reduceat(mixed, (np.cumsum(depths) - depths)[filled])
    hashes ^= hashes >> _SHIFT
    hashes *= _MULTIPLIER
    hashes ^= hashes >> _SHIFT
    return np.maximum(hashes, np.uint64(1))


class _Buckets(Struct, frozen=True):
    """The content of buckets. `stacks` are the words of all stacks, `depths` their lengths."""

    records: _Words
    sizes: NDArray[np.int64]
    stacks: _Words
    depths: NDArray[np.intp]


class _Window(Struct, frozen=True):
    """A part of the memory: `words` begin at `start`; the header of a bucket may begin before `end`."""

    start: int
    end: int
    words: memoryview


class _Windows:
    """Parts of the memory around buckets. A bucket is complete in the window where it begins."""

    def __init__(self, memory: ProcessMemory) -> None:
        self._memory = memory
        self._at: dict[int, _Window] = {}
        # The words of all windows; for each its start and end in memory, and its place among the words.
        self._words = np.empty(_WINDOWS_MAX * _WINDOW_WORDS, np.uint64)
        self._read: list[tuple[int, int, int]] = []

    def follow(self, address: int, known: set[int], steps: int) -> tuple[list[int], int]:
        """Follow the list from an address to a known one, at most so many steps.

        Returns the addresses on the way, as far as they are readable, and the next one. Does not check
        whether they are buckets.
        """
        if self._is_full:
            self._at.clear()
            self._read.clear()
        found: list[int] = []
        take, shift, link = found.append, _WORD_SHIFT, _ALL_NEXT
        start = end = 0
        for _ in repeat(None, steps):
            if address in known:
                break
            if not start <= address < end:
                window = self._around(address)
                if window is None:
                    break
                start, end, words = window.start, window.end, window.words
            take(address)
            address = words[(address - start >> shift) + link]
        return found, address

    @property
    def _is_full(self) -> bool:
        return len(self._read) >= _WINDOWS_MAX

    def _around(self, address: int) -> _Window | None:
        """The window in which a bucket at an address begins; None if it is unreadable, or at the limit."""
        base = address & -_WINDOW_BYTES
        window = self._at.get(base)
        if window is None or address < window.start:
            if self._is_full:
                return None
            window = self._at[base] = self._read_window(address, base)
        return window if address < window.end else None

    def _read_window(self, address: int, base: int) -> _Window:
        start, end = base, base + _WINDOW_WORDS * _WORD_BYTES
        data = self._memory.read(start, end - start)
        if address - base >= len(data):
            # The start is before the mapping.
            start = address & -_PAGE_BYTES
            data = self._memory.read(start, end - start)
        count, place = len(data) // _WORD_BYTES, len(self._read) * _WINDOW_WORDS
        words = self._words[place : place + count]
        words[:] = np.frombuffer(data, np.uint64, count)
        if count >= _HEADER_WORDS:
            self._read.append((start, start + count * _WORD_BYTES, place))
        end = min(base + _WINDOW_BYTES, start + (count - _HEADER_WORDS + 1) * _WORD_BYTES)
        return _Window(start, end, words.data)

    def buckets(self, addresses: list[int]) -> _Buckets:
        """The buckets at followed addresses, up to the first address that cannot be one."""
        at, words = np.array(addresses, np.int64), self._words
        starts, ends, firsts = np.array(sorted(self._read), np.int64).reshape(-1, 3).T
        # Windows may overlap: an address followed in one is looked up in another, and may have changed.
        window = np.searchsorted(starts, at, side="right") - 1
        room = (ends[window] - at) // _WORD_BYTES - _HEADER_WORDS
        count = _count_until_false((room >= 0) & (at % _WORD_BYTES == 0))
        at, window, room = at[:count], window[:count], room[:count]
        places = firsts[window] + (at - starts[window]) // _WORD_BYTES
        depths = words[places + _DEPTH]
        fits = depths <= np.minimum(room, _DEPTH_MAX).astype(np.uint64)
        count = _count_until_false(fits & (words[places + _KIND] == _MEMORY_PROFILE))
        # Buckets do not overlap, so together they have no more words than were read.
        taken = np.cumsum(depths[:count] + np.uint64(_HEADER_WORDS))
        count = int(np.searchsorted(taken, np.uint64((ends - starts).sum() // _WORD_BYTES), side="right"))
        at, places, sizes = at[:count], places[:count], words[places[:count] + _SIZE]
        lengths = depths[:count].astype(np.intp)
        records = (at + (_HEADER_WORDS + lengths) * _WORD_BYTES).astype(np.uint64)
        sizes = np.minimum(sizes, np.uint64(_SIZE_MAX))
        stacks = words[_spread(places + _HEADER_WORDS, lengths)]
        return _Buckets(records, sizes.astype(np.int64), stacks, lengths)


def _count_until_false(good: NDArray[np.bool_]) -> int:
    return len(good) if good.all() else int(np.argmin(good))
