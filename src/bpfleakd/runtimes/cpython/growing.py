"""Finds growing containers, which hold the objects that make a heap grow.

Rules:
- A container grows as long as no reading finds it smaller than the one before. One that shrinks, such as a
  queue or a cache that evicts, starts over.
- It counts as growing after `_RISES_MIN` readings that found it larger, if those are most of them and the
  last is recent.
- A container is identified by its address and kind; one that was freed and made again at the same address is
  smaller.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from bpfleakd.runtimes.cpython.containers import Container

_RISES_MIN = 4
READINGS_MIN = _RISES_MIN + 1
_RISES_SHARE = 0.6
# After this many readings without an increase, growth has stopped.
_STILL_MAX = 3
_GAINED_MIN = 64


class _Series(Struct):
    container: Container
    first_s: float
    first_size: int
    last_s: float
    readings: int = 1
    rises: int = 0
    still: int = 0
    grows_first: bool = False


class GrowingContainer(Struct, frozen=True):
    """A container as of the last reading, its gain per second, and the place of its newest values."""

    container: Container
    growth_per_s: float
    rises: int
    table: int


class GrowingContainers:
    """The containers of one process over its readings."""

    def __init__(self) -> None:
        self._series: dict[int, _Series] = {}

    def take(self, at_s: float, containers: Iterable[Container]) -> None:
        """Add a reading. Containers that are not in it are forgotten: they are gone, or small."""
        self._series = {
            container.address: self._next(self._series.get(container.address), at_s, container)
            for container in containers
        }

    def growing(self) -> list[GrowingContainer]:
        """The growing containers, most values per second first."""
        found = [
            GrowingContainer(one.container, _rate(one), one.rises, _table(one))
            for one in self._series.values()
            if one.rises >= max(_RISES_MIN, _RISES_SHARE * (one.readings - 1)) and _is_recent(one)
        ]
        return sorted(found, key=lambda one: -one.growth_per_s)

    def rising(self, limit: int) -> Iterator[int]:
        """Yield the addresses of those that grew at the last reading, most values first."""
        rising = [one for one in self._series.values() if one.rises and not one.still]
        rising.sort(key=lambda one: -_rate(one))
        return (one.container.address for one in rising[:limit])

    @staticmethod
    def _next(series: _Series | None, at_s: float, container: Container) -> _Series:
        if series is None or container.kind != series.container.kind:
            return _Series(container, at_s, container.size, at_s)
        before, ends = series.container.size, (series.container.first_table, series.container.table)
        if container.size < before:
            return _Series(container, at_s, container.size, at_s)
        if (container.first_table, container.table) != ends:
            # A deque that grows at its beginning has a new first block, and the same last one.
            series.grows_first = container.table == ends[1]
        series.container, series.last_s = container, at_s
        series.readings += 1
        is_larger = container.size > before
        series.rises += is_larger
        series.still = 0 if is_larger else series.still + 1
        return series


def _is_recent(series: _Series) -> bool:
    return series.still < _STILL_MAX and series.container.size - series.first_size >= _GAINED_MIN


def _table(series: _Series) -> int:
    return series.container.first_table if series.grows_first else series.container.table


def _rate(series: _Series) -> float:
    return (series.container.size - series.first_size) / max(1e-9, series.last_s - series.first_s)
