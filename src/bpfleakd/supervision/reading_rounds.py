"""Schedules the readings of many processes' memory: often if it changes, rarely if it does not.

Readings are spread over time: processes that are added together do not become due together. Times come from
any monotonic clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# A process that does not change is read at growing intervals, up to this many times the shortest.
_SLOWEST = 6.0
_SLOWER = 1.5
# Multiples of the golden ratio, modulo 1, fill the interval evenly, however many there are.
_GOLDEN = 0.618033988749895


class ReadingRounds(Generic[K]):
    """When to read each process; `interval_s` is the time between readings of a changing process."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._intervals_s: dict[K, float] = {}
        # (due, ticket, key); the valid entry is the one with the key's ticket.
        self._queue: list[tuple[float, int, K]] = []
        self._tickets: dict[K, int] = {}
        self._next_ticket = itertools.count()

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, key: K, now_s: float) -> None:
        """Schedule a process, first within one interval. Adding it again starts over."""
        self._intervals_s[key] = self._interval_s
        self._schedule(key, now_s, spread=True)

    def remove(self, key: K) -> None:
        """Remove a process; ignores unknown ones."""
        self._tickets.pop(key, None)
        self._intervals_s.pop(key, None)
        if len(self._queue) > 2 * len(self._tickets) + 16:
            self._queue = [entry for entry in self._queue if self._tickets.get(entry[2]) == entry[1]]
            heapq.heapify(self._queue)

    def due(self, now_s: float, limit: int) -> list[K]:
        """At most `limit` due processes, the most overdue first. Each is due again after `was_read`."""
        found: list[K] = []
        while self._queue and self._queue[0][0] <= now_s and len(found) < limit:
            _due_s, ticket, key = heapq.heappop(self._queue)
            if self._tickets.get(key) == ticket:
                found.append(key)
        return found

    def was_read(self, key: K, now_s: float, *, changed: bool) -> None:
        """Schedule the next reading: soon if it `changed`, else later than last time.

        Ignores unknown ones.
        """
        if key not in self._tickets:
            return
        slower_s = min(self._intervals_s[key] * _SLOWER, self._interval_s * _SLOWEST)
        self._intervals_s[key] = self._interval_s if changed else slower_s
        self._schedule(key, now_s, spread=False)

    def _schedule(self, key: K, now_s: float, *, spread: bool) -> None:
        ticket = next(self._next_ticket)
        share = ticket * _GOLDEN % 1 if spread else 1.0
        self._tickets[key] = ticket
        heapq.heappush(self._queue, (now_s + share * self._intervals_s[key], ticket, key))
