"""Sorts the events of several threads by time.

A runtime writes what one thread has buffered, then what the next one has, every 100 ms. So the beginnings of
three background collections, which threads of the program announce, may come before the end of the first one,
which the collector's thread announces.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfleakd.runtimes.dotnet.nettrace import Event

# Longer than a runtime buffers, also on a busy machine.
HELD_S = 0.5
_HELD_NS = int(HELD_S * 1e9)
# Further events are released: at 50,000 per second a window of samples ends anyway.
_HELD_MAX = 50_000


class EventOrder:
    """The events of one session that have arrived, and may not be the next ones."""

    def __init__(self) -> None:
        self._held: list[Event] = []

    @property
    def is_holding(self) -> bool:
        """Whether there are any events."""
        return bool(self._held)

    def take(self, new: Iterable[Event]) -> list[Event]:
        """Add new events; returns those that are `HELD_S` older than the newest event, in order."""
        self._held.extend(new)
        self._held.sort(key=lambda event: event.time_ns)
        if len(self._held) > _HELD_MAX:
            return self.rest()
        until_ns = self._held[-1].time_ns - _HELD_NS if self._held else 0
        count = sum(1 for event in self._held if event.time_ns <= until_ns)
        ready, self._held = self._held[:count], self._held[count:]
        return ready

    def rest(self) -> list[Event]:
        """All remaining events, in order, since none have arrived for `HELD_S`."""
        ready, self._held = self._held, []
        return ready
