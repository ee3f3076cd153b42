"""The object heap of one process over time: its used memory, and the containers that make it grow.

Python counts references, so used memory is live memory, except for cycles that wait for the collector. The
heap is read by a child (`heap_reading`), which costs the process nothing and the daemon some tenths of a
second of a processor: while it may grow every twelfth of the time watched, else once a minute, and never so
often that its readings take more than a twelfth of a processor, and those of all processes a quarter. One
process is read at a time; the one that has been due for longest is next.

The stack that last allocated a larger table for a container makes it grow: the table is a block of malloc,
whose stack is recorded.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from bpfleakd import errors
from bpfleakd.model.code.stack import RawStack
from bpfleakd.runtimes.cpython.growing import GrowingContainer, GrowingContainers
from bpfleakd.runtimes.cpython.heap_reading import (
    HeapReading,
    HeapRequest,
    HeapTarget,
    ReadingChild,
    ask,
    started,
)
from bpfleakd.runtimes.cpython.turns import ReadingTurns
from bpfleakd.runtimes.runtime import LiveHeap, Retained, TypeCount

log = structlog.get_logger()

_NS_PER_S = 1_000_000_000
_SHORTEST_NS, _LONGEST_NS = 5 * _NS_PER_S, 60 * _NS_PER_S
_PARTS = 12
# Shares of a processor, for the readings of one process, and of all.
_TIME_SHARE, _TIME_SHARE_OF_ALL = 0.08, 0.25
_TIMEOUT_S = 60.0
_WATCHED_MAX = 64
# Until 3.10, the name of the type has no module.
_WEAK = re.compile(r"_?weakref(\.|$)")
_AS_FAST = 0.8
# The function is looked up for these: two system calls for each, once per table.
_CHARGED_MAX = 1_024
_SHOWN_MAX = 20
_FAILURES_MAX = 3
_TYPES_MAX = 200


class ObjectHeap:
    """Readings of one heap since `watched_since_ns`. Implements LiveHeapSource and RetainedSource.

    `turns` are shared by all processes.
    """

    def __init__(self, target: HeapTarget, now_ns: int, turns: ReadingTurns) -> None:
        self.failure: str | None = None
        self.watched_since_ns: int | None = now_ns
        self._target = target
        self._turns = turns
        self._due_ns = now_ns
        self._growing = GrowingContainers()
        self._values: dict[int, tuple[str, ...]] = {}
        # By container: the table that was charged, and its stack.
        self._stacks: dict[int, tuple[int, RawStack]] = {}
        self._new: list[LiveHeap] = []
        self._count = 0
        self._failures = 0
        self._is_wanted = True
        self._child: ReadingChild | None = None
        self._thread: threading.Thread | None = None
        self._found: tuple[int, HeapReading] | errors.BpfleakdError | None = None
        self._is_closed = False

    def read(self, now_ns: int) -> Sequence[LiveHeap]:
        """The readings since the last call."""
        self.refresh(now_ns)
        new, self._new = self._new, []
        return new

    def want(self, *, wanted: bool) -> None:
        """Set whether the heap seems to grow."""
        self._is_wanted = wanted

    def refresh(self, now_ns: int) -> None:
        """Process a finished reading, and start one that is due."""
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread.join()
            self._thread = None
            self._take(now_ns)
        if self.failure is None and now_ns >= self._due_ns and not self._is_closed:
            self._thread = threading.Thread(target=self._read, name="python-heap", daemon=True)
            self._thread.start()

    def charge(self, stack_of_block: Callable[[int], RawStack | None]) -> None:
        """Find the stacks of growing containers' tables, while these are still where they were read."""
        for one in self._growing.growing()[:_CHARGED_MAX]:
            address, known = one.container.address, self._stacks.get(one.container.address)
            if not one.container.is_own or (known is not None and known[0] == one.table):
                continue
            stack = stack_of_block(one.table)
            if stack is not None:
                self._stacks[address] = one.table, stack

    def retained(self) -> Sequence[Retained]:
        """The growing containers, by the site that makes them grow; those of one site are summed.

        A container of weak references retains nothing, and is left out if another one gains values as fast:
        asyncio has a set of all tasks, for example.
        """
        groups: dict[tuple[str, object], list[GrowingContainer]] = {}
        for one in self._growing.growing():
            _table, stack = self._stacks.get(one.container.address, (0, None))
            site = stack.addresses if stack is not None else one.container.address
            groups.setdefault((one.container.kind, site), []).append(one)
        found = sorted(map(self._retained, groups.values()), key=lambda one: -one.growth_bytes_per_s)
        found = found[:_SHOWN_MAX]
        keeping = max((one.growth_bytes_per_s for one in found if not _WEAK.match(one.type)), default=0)
        return [
            one for one in found if not _WEAK.match(one.type) or keeping < _AS_FAST * one.growth_bytes_per_s
        ]

    def close(self) -> None:
        """End a running or waiting reading, without waiting for it."""
        self._is_closed = True
        self._turns.look_again()
        child = self._child
        if child is not None:
            child.kill()

    def _retained(self, group: list[GrowingContainer]) -> Retained:
        """Containers that one site makes grow, the fastest first."""
        kind, addresses = group[0].container.kind, [one.container.address for one in group]
        types = Counter(self._values[at][0] for at in addresses if self._values.get(at))
        size, growth_per_s = sum(one.container.size for one in group), sum(one.growth_per_s for one in group)
        _table, stack = self._stacks.get(addresses[0], (0, None))
        several = f"{len(group):,} {kind}s with {size:,} values"
        return Retained(
            type=types.most_common(1)[0][0] if types else "object",
            stack=(),
            live_bytes=8 * size,
            samples=size,
            growth_bytes_per_s=8 * growth_per_s,
            container=f"{kind} of {size:,}" if len(group) == 1 else several,
            container_count=len(group),
            growth_per_s=growth_per_s,
            raw_stack=stack,
        )

    def _take(self, now_ns: int) -> None:
        found, self._found = self._found, None
        since_ns = self.watched_since_ns or now_ns
        took_s = 1.0
        if isinstance(found, tuple):
            at_ns, reading = found
            self._failures = 0
            self._count += 1
            took_s = reading.took_s
            types = tuple(TypeCount(*one) for one in reading.counts[:_TYPES_MAX])
            self._new.append(LiveHeap(at_ns, reading.live_bytes, self._count, is_reading=True, types=types))
            self._growing.take(at_ns / _NS_PER_S, reading.containers)
            here = {one.address for one in reading.containers}
            self._values = {
                at: names for at, names in self._values.items() if at in here
            } | reading.value_types
            self._stacks = {at: stack for at, stack in self._stacks.items() if at in here}
        else:
            self._failures += 1
            if self._failures >= _FAILURES_MAX:
                self.failure = str(found.message if found else "a reading failed")
        pause_ns = (now_ns - since_ns) // _PARTS if self._is_wanted else _LONGEST_NS
        pause_ns = min(max(pause_ns, _SHORTEST_NS), _LONGEST_NS)
        self._due_ns = now_ns + max(pause_ns, round(took_s / _TIME_SHARE * _NS_PER_S))

    def _read(self) -> None:
        """Runs in a separate thread."""
        with self._turns.turn(lambda: not self._is_closed) as has_turn:
            if has_turn:
                self._read_now()

    def _read_now(self) -> None:
        try:
            self._child = child = started()
            if self._is_closed:
                child.kill()
            watched = tuple(self._growing.rising(_WATCHED_MAX))
            reading = ask(child, HeapRequest(self._target, watched=watched), _TIMEOUT_S)
            self._found = (time.monotonic_ns(), reading)
            self._turns.rest(reading.took_s * (1 / _TIME_SHARE_OF_ALL - 1))
        except errors.BpfleakdError as error:
            self._found = error
        except Exception:
            # The content of a process' memory is shown to no other.
            log.exception("python-heap.not-read", pid=self._target.pid)
        finally:
            self._child = None
