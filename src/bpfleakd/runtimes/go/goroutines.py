"""The goroutines of a program: how many were started at each place, and what they wait for.

`allgptr` and `allglen` are the list of all goroutines that ever were; ended ones stay in it for reuse. Where
the fields of a goroutine (`g`, runtime/runtime2.go) are differs between releases, and is found out: the
layout is the one by which the goroutines make sense, with known states and first functions that begin there.

The memory is the program's own: everything is bounded, and what makes no sense is counted and left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.printable import printable, shortened
from bpfleakd.runtimes.go.memory import ProcessMemory, Records

GOROUTINES_MAX = 200_000
_WORD_BYTES = 8
_RECORD_WORDS = 42
# atomicstatus, waitreason, gopc, startpc: 1.18 to 1.19, 1.20 to 1.22, 1.23 to 1.25, 1.26 and later.
_LAYOUTS = ((144, 176, 296, 312), (144, 176, 280, 296), (152, 184, 288, 304), (144, 176, 288, 304))
_STACK_LOW, _STACK_HIGH = 0, 8
_STACK_LIMIT_BYTES = 1 << 30

# runtime2.go: _Gidle to _Gdeadextra; the scan bit is set while the collector scans the stack.
_STATES = {1: "runnable", 2: "running", 3: "syscall", 4: "waiting", 8: "copying its stack", 9: "preempted"}
_DEAD = (0, 6, 11)
_LEAKED = 10
_STATE_MAX = 11
_SCAN = 0x1000
_WAITING = 4

_SENSIBLE_SHARE = 0.9
_TRIED = 64
_REASONS_MAX = 64
_REASON_LIMIT_BYTES = 64


class StartPlace(Struct, frozen=True):
    """The start of goroutines: the return address of the `go` statement, and the first function."""

    go_address: int
    function_address: int


class GoroutineReading(Struct, frozen=True):
    """Live goroutines, by start place and activity; the bytes of their stacks by start place.

    `left_out` exceeded GOROUTINES_MAX, or were inconsistent.
    """

    states: dict[StartPlace, Counter[str]]
    stack_bytes: Counter[StartPlace]
    left_out: int

    @property
    def count(self) -> int:
        """The number of live ones."""
        return sum(states.total() for states in self.states.values())


class Goroutines:
    """The goroutines of one process."""

    def __init__(
        self,
        memory: ProcessMemory,
        list_address: int,
        count_address: int,
        reasons_address: int,
        is_entry: Callable[[int], bool],
    ) -> None:
        """The addresses of allgptr, allglen, waitReasonStrings (0: unknown); `is_entry` finds functions."""
        self._memory = memory
        self._list_address = list_address
        self._count_address = count_address
        self._reasons_address = reasons_address
        self._is_entry = is_entry
        self._layout: tuple[int, int, int, int] | None = None
        self._reasons: dict[int, str] = {}

    def read(self) -> GoroutineReading | None:
        """The live goroutines; None if they cannot be read, or have no known layout."""
        count = self._memory.number(self._count_address) or 0
        start = self._memory.number(self._list_address)
        if start is None or not count:
            return None
        wanted = min(count, GOROUTINES_MAX)
        data = self._memory.read(start, wanted * _WORD_BYTES)
        addresses = np.frombuffer(data[: len(data) // _WORD_BYTES * _WORD_BYTES], np.uint64)
        words, is_read = Records(addresses, _RECORD_WORDS).read(self._memory)
        words = words[is_read]
        if not len(words):
            return None
        if self._layout is None:
            self._layout = self._layout_of(words[:_TRIED])
        return self._sums(words, self._layout, count - len(words)) if self._layout else None

    def _layout_of(self, words: NDArray[np.uint64]) -> tuple[int, int, int, int] | None:
        for layout in _LAYOUTS:
            state_at, _reason_at, _go_at, start_at = layout
            states, starts = _states(words, state_at), words[:, start_at // _WORD_BYTES]
            alive = (states <= _STATE_MAX) & ~np.isin(states, _DEAD)
            begin = [self._is_entry(int(address)) for address in starts[alive].tolist()]
            if begin and sum(begin) >= _SENSIBLE_SHARE * len(begin) and (states <= _STATE_MAX).all():
                return layout
        return None

    def _sums(
        self, words: NDArray[np.uint64], layout: tuple[int, int, int, int], left_out: int
    ) -> GoroutineReading:
        state_at, reason_at, go_at, start_at = layout
        states = _states(words, state_at)
        alive = (states <= _STATE_MAX) & ~np.isin(states, _DEAD)
        words, states = words[alive], states[alive]
        reasons = (words[:, reason_at // _WORD_BYTES] >> np.uint64(reason_at % _WORD_BYTES * 8)) & np.uint64(
            0xFF
        )
        stacks = words[:, _STACK_HIGH // _WORD_BYTES] - words[:, _STACK_LOW // _WORD_BYTES]
        stacks = np.where(stacks <= _STACK_LIMIT_BYTES, stacks, 0)
        columns = words[:, go_at // _WORD_BYTES], words[:, start_at // _WORD_BYTES], states, reasons
        rows, kinds = _distinct(columns)
        counts = np.bincount(kinds, minlength=len(rows))
        bytes_of = np.bincount(kinds, stacks.astype(np.float64), len(rows))
        by_place: dict[StartPlace, Counter[str]] = {}
        stack_bytes: Counter[StartPlace] = Counter()
        for (go, start, state, reason), number, size in zip(
            rows, counts.tolist(), bytes_of.tolist(), strict=True
        ):
            place = StartPlace(go, start)
            by_place.setdefault(place, Counter())[self._state_words(state, reason)] += number
            stack_bytes[place] += round(size)
        return GoroutineReading(by_place, stack_bytes, max(0, left_out))

    def _state_words(self, state: int, reason: int) -> str:
        if state not in (_WAITING, _LEAKED):
            return _STATES.get(state, f"state {state}")
        if reason not in self._reasons:
            self._reasons[reason] = self._reason(reason)
        return self._reasons[reason]

    def _reason(self, reason: int) -> str:
        """The text of waitReasonStrings, an array of Go strings (address, length)."""
        if not self._reasons_address or reason >= _REASONS_MAX:
            return "waiting"
        at = self._reasons_address + reason * 2 * _WORD_BYTES
        address, size_bytes = self._memory.number(at), self._memory.number(at + _WORD_BYTES)
        if not address or not size_bytes or size_bytes > _REASON_LIMIT_BYTES:
            return "waiting"
        text = self._memory.read(address, size_bytes).decode(errors="replace")
        return shortened(printable(text), _REASON_LIMIT_BYTES) or "waiting"


def _distinct(columns: Sequence[NDArray[Any]]) -> tuple[list[tuple[int, ...]], NDArray[np.intp]]:
    """The distinct rows of columns, and the index of each row among them."""
    codes = np.zeros(len(columns[0]), np.intp)
    for column in columns:
        values, places = np.unique(column, return_inverse=True)
        codes = np.unique(codes * len(values) + places, return_inverse=True)[1]
    first = np.unique(codes, return_index=True)[1]
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), codes


def _states(words: NDArray[np.uint64], state_at: int) -> NDArray[np.int64]:
    states = (words[:, state_at // _WORD_BYTES] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return states & ~_SCAN
