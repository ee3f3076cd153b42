"""The object heap of one process over time: its used memory, and the containers that make it grow.

Python counts references, so used memory is live memory, except for cycles that wait for the collector. What
grows is no such garbage if a container gains values, if a full collection has come since the last reading, or
if none is expected within ten minutes of watching: then it stays.

The heap is read by a child (`heap_reading`), which costs the process nothing and the daemon some tenths of a
second of a processor: while it may grow every twelfth of the time watched, else once a minute, and never so
often that its readings take more than a twelfth of a processor, and those of all processes a quarter. The
first readings, which tell what grows, may take a quarter, too. One process is read at a time; the one that
has been due for longest is next.

The stack that last allocated a larger table for a container makes it grow: the table is a block of malloc,
whose stack is recorded.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import structlog

from bpfleakd import errors
from bpfleakd.model.code.stack import RawStack
from bpfleakd.runtimes.cpython.collector import CollectorLooks, CollectorState
from bpfleakd.runtimes.cpython.growing import READINGS_MIN, GrowingContainer, GrowingContainers
from bpfleakd.runtimes.cpython.heap_reading import (
    HeapReading,
    HeapRequest,
    HeapTarget,
    ReadingChild,
    SharedReader,
    ask,
)
from bpfleakd.runtimes.runtime import CYCLES_WAIT_MAX_S, CycleGarbage, LiveHeap, Retained, TypeCount
from bpfleakd.threads import begin_thread

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

_T = TypeVar("_T")


class ObjectHeap:
    """Readings of one heap since `watched_since_ns`. Implements LiveHeapSource, HolderSource, CycleCollected.

    `reader` is shared by all processes.
    """

    def __init__(
        self,
        target: HeapTarget,
        collector: Callable[[], CollectorState | None],
        now_ns: int,
        reader: SharedReader,
    ) -> None:
        self.failure: str | None = None
        self.watched_since_ns: int | None = now_ns
        self._target = target
        self._collector = collector
        self._reader = reader
        self._due_ns = now_ns
        self._growing = GrowingContainers()
        self._looks = CollectorLooks()
        self._looks_due_ns = now_ns
        self._seen_collections = 0
        self._values: dict[int, tuple[str, ...]] = {}
        self._bounds: dict[int, int] = {}
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
        """Process a finished reading, and start one that is due; look at the collector, which is cheap."""
        if now_ns >= self._looks_due_ns and self.failure is None:
            self._looks_due_ns = now_ns + _SHORTEST_NS
            self._look(now_ns)
        if self._thread is not None:
            if self._thread.is_alive():
                return
            self._thread.join()
            self._thread = None
            self._take(now_ns)
        if self.failure is None and now_ns >= self._due_ns and not self._is_closed:
            self._thread = begin_thread("python-heap", self._read)

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

    @property
    def cycles(self) -> CycleGarbage:
        """What the collector has looked at."""
        return CycleGarbage(self._looks.looked_ns, self._looks.due_s(), self._count >= READINGS_MIN)

    def close(self) -> None:
        """End a running or waiting reading, without waiting for it."""
        self._is_closed = True
        self._reader.turns.look_again()
        child = self._child
        if child is not None:
            child.kill()

    def _retained(self, group: list[GrowingContainer]) -> Retained:
        """Containers that one site makes grow, the fastest first."""
        kind, addresses = group[0].container.kind, [one.container.address for one in group]
        types = Counter(self._values[at][0] for at in addresses if self._values.get(at))
        size, growth_per_s = sum(one.container.size for one in group), sum(one.growth_per_s for one in group)
        _table, stack = self._stacks.get(addresses[0], (0, None))
        # Only the dicts of functools.lru_cache show a bound.
        bounds = [self._bounds.get(at) for at in addresses]
        bound = sum(one for one in bounds if one) if all(bounds) else None
        noun = "lru_cache" if bound is not None and kind == "dict" else kind
        several = f"{len(group):,} {noun}s with {size:,} values"
        return Retained(
            type=types.most_common(1)[0][0] if types else "object",
            stack=(),
            live_bytes=8 * size,
            samples=size,
            growth_bytes_per_s=8 * growth_per_s,
            container=f"{noun} of {size:,}" if len(group) == 1 else several,
            container_count=len(group),
            growth_per_s=growth_per_s,
            bound=bound,
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
            self._growing.take(at_ns / _NS_PER_S, reading.containers)
            here = {one.address for one in reading.containers}
            self._values = _kept(self._values, here) | reading.value_types
            self._bounds = _kept(self._bounds, here) | reading.bounds
            self._stacks = _kept(self._stacks, here)
            is_full = self._is_collected() or not self._may_be_garbage((at_ns - since_ns) / _NS_PER_S)
            self._new.append(
                LiveHeap(
                    at_ns, reading.live_bytes, self._count, is_full=is_full, is_reading=True, types=types
                )
            )
        else:
            self._failures += 1
            if self._failures >= _FAILURES_MAX:
                self.failure = str(found.message if found else "a reading failed")
        pause_ns = (now_ns - since_ns) // _PARTS if self._is_wanted else _LONGEST_NS
        pause_ns = min(max(pause_ns, _SHORTEST_NS), _LONGEST_NS)
        share = _TIME_SHARE if self._count >= READINGS_MIN else _TIME_SHARE_OF_ALL
        self._due_ns = now_ns + max(pause_ns, round(took_s / share * _NS_PER_S))

    def _look(self, now_ns: int) -> None:
        try:
            state = self._collector()
        except OSError:
            state = None
        self._looks.take(now_ns, state)

    def _is_collected(self) -> bool:
        """Whether a full collection has come since the last reading."""
        seen, self._seen_collections = self._seen_collections, self._looks.count
        return self._looks.count > seen

    def _may_be_garbage(self, watched_s: float) -> bool:
        """Whether what grows may be cycles that a full collection will soon free."""
        is_held = any(one.container.address not in self._bounds for one in self._growing.growing())
        return not is_held and watched_s + self._looks.due_s() <= CYCLES_WAIT_MAX_S

    def _read(self) -> None:
        """Runs in a separate thread."""
        with self._reader.turns.turn(lambda: not self._is_closed) as has_turn:
            if has_turn:
                self._read_now()
        self._reader.end_if_idle()

    def _read_now(self) -> None:
        try:
            watched = tuple(self._growing.rising(_WATCHED_MAX))
            with self._reader.child() as child:
                self._child = child
                if self._is_closed:
                    child.kill()
                reading = ask(child, HeapRequest(self._target, watched=watched), _TIMEOUT_S)
            self._found = (time.monotonic_ns(), reading)
            self._reader.turns.rest(reading.took_s * (1 / _TIME_SHARE_OF_ALL - 1))
        except errors.BpfleakdError as error:
            self._found = error
        except Exception:
            # The content of a process' memory is shown to no other.
            log.exception("python-heap.not-read", pid=self._target.pid)
        finally:
            self._child = None


def _kept(known: Mapping[int, _T], addresses: set[int]) -> dict[int, _T]:
    return {address: value for address, value in known.items() if address in addresses}
