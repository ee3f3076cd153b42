"""Events of several threads, in the order of time."""

from __future__ import annotations

import random

from bpfleakd.runtimes.dotnet.event_order import EventOrder
from bpfleakd.runtimes.dotnet.nettrace import Event

from .streams import RUNTIME

MS = 1_000_000


def event(at_ms: int) -> Event:
    return Event(RUNTIME, 1, 0, at_ms * MS, (), b"")


def test_what_threads_wrote_one_after_the_other() -> None:
    """Each piece of 100 ms has the events of one thread, then those of the next."""
    random.seed(23)
    times_ms = sorted(random.sample(range(10_000), 500))
    order, found = EventOrder(), []
    for begins_ms in range(0, 10_000, 100):
        piece = [event(at) for at in times_ms if begins_ms <= at < begins_ms + 100]
        found += order.take(sorted(piece, key=lambda one: (one.time_ns % 3, one.time_ns)))
    assert len(found) < 500
    assert order.is_holding
    found += order.rest()
    assert [one.time_ns for one in found] == [at * MS for at in times_ms]
    assert not order.is_holding
    assert order.take([]) == []


def test_not_without_end() -> None:
    """A process that writes more events than anybody needs does not fill the helper's memory."""
    order = EventOrder()
    assert order.take([event(1)] * 40_000) == []
    assert len(order.take([event(1)] * 20_000)) == 60_000
    assert not order.is_holding
