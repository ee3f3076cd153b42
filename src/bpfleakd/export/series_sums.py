"""Figures of several processes under one set of labels.

Rules:
  - A gauge is the sum (or the least) over the current processes. The last value of a process holds until it
    changes or the process is gone.
  - A counter never falls while its series exists: it adds the increases of each process, one by one, and
    keeps the counts of ended processes. (The sum over current processes would fall when one ends; Prometheus
    would treat that as a reset, and the rest of the sum as an increase.)
  - A series begins with the counts of its processes since their attach. For an adopted process, or one that
    moves from another series, it adds only the later counts: the earlier ones were already exported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

G = TypeVar("G", bound=Hashable)

Combine = Callable[[Iterable[float]], float]


class SeriesReading(Struct, frozen=True):
    """The figures of one process under one set of labels.

    A gauge is None if unknown. `age_s` is how long the process has been traced: a smaller one than before
    means another process with the same PID, or another attach. `adopted`: another daemon counted before.
    """

    gauges: tuple[float | None, ...]
    counters: tuple[float, ...]
    age_s: float
    adopted: bool = False


class Sums(Struct, frozen=True):
    """The exported sums under one set of labels; None leaves a series out."""

    gauges: tuple[float | None, ...]
    counters: tuple[float, ...]


class _Group(Struct):
    totals: list[float]
    parts: dict[int, SeriesReading] = msgspec.field(default_factory=dict)


class SeriesSums(Generic[G]):
    """`combine` has a function for each gauge: `sum` or `min`."""

    def __init__(self, combine: Sequence[Combine], counters: int) -> None:
        self._combine = tuple(combine)
        self._counters = counters
        self._groups: dict[G, _Group] = {}
        self._ages_s: dict[int, float] = {}

    @property
    def groups(self) -> frozenset[G]:
        """The labels with exported figures."""
        return frozenset(self._groups)

    def update(
        self,
        shown: Collection[G],
        readings: Mapping[G, Mapping[int, SeriesReading]],
        pids: Collection[int],
        *,
        exclusive: bool = False,
    ) -> dict[G, Sums]:
        """Add the readings of the processes `pids`, by group and pid; returns the sums of those `shown`.

        `exclusive`: a process belongs only to the group in which it has a reading.
        """
        before, self._groups = self._groups, {}
        for key in shown:
            group = self._groups[key] = before.get(key) or _Group([0.0] * self._counters)
            said = readings.get(key, {})
            for pid in group.parts.keys() - (said.keys() if exclusive else set(pids)):
                del group.parts[pid]
            for pid, reading in said.items():
                self._take(group, pid, reading, is_new=key not in before)
        ages_s = {pid: reading.age_s for said in readings.values() for pid, reading in said.items()}
        self._ages_s = {pid: self._ages_s.get(pid, 0.0) for pid in pids} | ages_s
        return {key: self._sums(group) for key, group in self._groups.items()}

    def _take(self, group: _Group, pid: int, reading: SeriesReading, *, is_new: bool) -> None:
        before = group.parts.get(pid)
        known = pid in self._ages_s and reading.age_s >= self._ages_s[pid]
        if before is not None and reading.age_s >= before.age_s:
            old = before.counters
        elif reading.adopted or (known and not is_new):
            old = reading.counters
        else:
            old = (0.0,) * self._counters
        for index, (now, then) in enumerate(zip(reading.counters, old, strict=True)):
            # A counter that falls belongs to another attach.
            group.totals[index] += now - then if now >= then else now
        group.parts[pid] = reading

    def _sums(self, group: _Group) -> Sums:
        gauges: list[float | None] = []
        for index, combine in enumerate(self._combine):
            known = [part.gauges[index] for part in group.parts.values()]
            values = [value for value in known if value is not None]
            # A sum over no process is 0; the least of none is unknown.
            gauges.append(combine(values) if values else 0.0 if combine is sum and not known else None)
        return Sums(tuple(gauges), tuple(group.totals))
