"""The goroutines of a traced Go program, and whether their number keeps growing.

Rules:
  - Goroutines that were started by the same `go` statement are one row of a table like that of call sites, a
    block each with the bytes of its stack. So a leak of goroutines is judged as one of memory is.
  - They are counted every 5 s, and in no more than a hundredth of the time: the processor's, since a busy
    machine makes a reading take long that costs little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b

import numpy as np
from msgspec.structs import replace

from bpfleakd.model.runtimes.goroutines import GoroutineGroup
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.runtimes.go.goroutines import GoroutineReading, StartPlace
from bpfleakd.runtimes.go.program import GoProgram
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.tracing.judging.site_verdicts import SiteVerdicts
from bpfleakd.units import human_duration

_NS_PER_S = 1_000_000_000
_PAUSE_NS = 5 * _NS_PER_S
_SHARE = 0.01
_WINDOW_NS = 60 * _NS_PER_S
_PLACES_MAX = 10_000
_LEAKS_NAMED = 3


class GoroutineWatch:
    """The goroutines of one program since `began_ns`.

    `clock_ns` is CLOCK_MONOTONIC, `spent_ns` the processor time of the thread that reads.
    """

    def __init__(
        self,
        program: GoProgram,
        began_ns: int,
        leak_after_s: float,
        clock_ns: Callable[[], int],
        spent_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._program = program
        self._goroutines = program.goroutines()
        self._table = SiteTable(began_ns)
        self._verdicts = SiteVerdicts(leak_after_s)
        self._clock_ns = clock_ns
        self._spent_ns = spent_ns
        self._due_ns = 0
        self._places: dict[SiteKey, StartPlace] = {}
        self._started: dict[SiteKey, tuple[int, int]] = {}
        self._reading: GoroutineReading | None = None
        self._announced: set[str | None] = set()
        self.leaks: tuple[GoroutineGroup, ...] = ()
        """Those that become ever more."""

    @property
    def count(self) -> int | None:
        """The number of live goroutines; None before the first count."""
        return self._reading.count if self._reading else None

    @property
    def losses(self) -> dict[str, int]:
        """Goroutines that were not counted: too many, or with inconsistent data."""
        return {"goroutines_missed": self._reading.left_out if self._reading else 0}

    def new_leaks(self) -> list[GoroutineGroup]:
        """Leaks that were not returned before."""
        new = [leak for leak in self.leaks if leak.started_at not in self._announced]
        self._announced |= {leak.started_at for leak in new}
        return new

    def read(self, now_ns: int) -> None:
        """Count the goroutines if it is due."""
        if self._goroutines is None or now_ns < self._due_ns:
            return
        before_ns = self._spent_ns()
        reading = self._goroutines.read()
        if reading is not None:
            self._take(now_ns, reading)
        took_ns = self._spent_ns() - before_ns
        self._due_ns = now_ns + max(_PAUSE_NS, round(took_ns / _SHARE))

    def _take(self, now_ns: int, reading: GoroutineReading) -> None:
        is_first = self._reading is None
        self._reading = reading
        for place in reading.states:
            if len(self._places) < _PLACES_MAX:
                self._places.setdefault(_key(place), place)
        keys = list(self._places)
        rows = np.array([self._counters(key, reading) for key in keys], np.int64).reshape(-1, len(COUNTERS))
        if is_first:
            self._table.begin_with(keys, rows)
        self._table.update(now_ns, keys, rows)
        self._verdicts.compute(self._table, (), self._clock_ns)
        self.leaks = tuple(group for group in self.groups() if group.verdict is Verdict.LEAK)

    def _counters(self, key: SiteKey, reading: GoroutineReading) -> tuple[int, ...]:
        place = self._places[key]
        count = reading.states[place].total() if place in reading.states else 0
        before, started = self._started.get(key, (0, 0))
        started += max(0, count - before)
        self._started[key] = count, started
        stack_bytes = reading.stack_bytes[place]
        return stack_bytes, count, stack_bytes, started, 0, stack_bytes, 0, 0

    def added_to(self, verdict: ProcessVerdict) -> ProcessVerdict:
        """The verdict on the process, which leaks if goroutines do."""
        if not self.leaks:
            return verdict
        reason = "; ".join((verdict.reason, *(leak.reason for leak in self.leaks[:_LEAKS_NAMED])))
        return replace(verdict, verdict=Verdict.LEAK, reason=reason)

    def groups(self) -> tuple[GoroutineGroup, ...]:
        """All live goroutines: leaks first, then the most numerous."""
        if self._reading is None:
            return ()
        groups = [
            self._group(row, place, self._reading)
            for row, place in enumerate(self._places.values())
            if place in self._reading.states
        ]
        return tuple(sorted(groups, key=lambda group: (group.verdict is not Verdict.LEAK, -group.count)))

    def _group(self, row: int, place: StartPlace, reading: GoroutineReading) -> GoroutineGroup:
        states = dict(reading.states[place].most_common())
        count = sum(states.values())
        key = self._table.keys[row]
        statement = self._program.method(place.go_address)
        function = self._program.function_at(place.function_address)
        verdict = self._verdicts.of(row, count, self._table.counters(key).allocated_count)
        past_ns, past_count = self._past(row)
        grown, window_s = count - past_count, (self._table.updated_ns - past_ns) / _NS_PER_S
        started_in = statement.name if statement else None
        started_at = statement.location if statement else None
        reason = verdict.reason
        if verdict.verdict is Verdict.LEAK:
            where = f"{started_in or '?'} {started_at.rpartition('/')[2] if started_at else ''}".rstrip()
            reason = (
                f"goroutine leak: {grown:,} more in {human_duration(window_s)}, started at {where},"
                f" waiting on {next(iter(states))}"
            )
        return GoroutineGroup(
            function=function.name if function else None,
            started_in=started_in,
            started_at=started_at,
            count=count,
            states=states,
            stack_bytes=reading.stack_bytes[place],
            grown_count=grown,
            grown_in_s=round(window_s, 1),
            verdict=verdict.verdict,
            confidence=verdict.confidence,
            reason=reason,
        )

    def _past(self, row: int) -> tuple[int, int]:
        """The count a minute before the last reading, or at the one before it, with its time."""
        newest_ns = self._table.updated_ns
        past_ns = max(self._table.began_ns, newest_ns - _WINDOW_NS)
        if not len(self._table.timeline):
            return past_ns, 0
        figures = self._table.timeline.at(past_ns, len(self._table))
        if figures.end_ns >= newest_ns and figures.start_ns < past_ns:
            # Nothing was read since, as in a program with so many goroutines that counts are rare.
            past_ns = figures.start_ns
            figures = self._table.timeline.at(past_ns, len(self._table))
        return past_ns, round(float(figures.low_count[row]))


def _key(place: StartPlace) -> SiteKey:
    """A table of one process; the kind only says that there are no blocks with ages."""
    text = f"{place.go_address:x} {place.function_address:x}".encode()
    return SiteKey(AllocationKind.GO_HEAP, int.from_bytes(blake2b(text, digest_size=8).digest(), "little"))
