"""How processes are noticed: a bounded queue, gaps, and scans if there are no events."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from bpfleakd import errors
from bpfleakd.model.process_events import ProcessChange, ProcessEvent
from bpfleakd.supervision.process_event_feed import ProcessEventFeed

GAP = ProcessEvent(ProcessChange.GAP)


def fork(pid: int) -> ProcessEvent:
    return ProcessEvent(ProcessChange.FORK, pid)


class Subscription:
    """Events from a queue; an exception in it is raised."""

    def __init__(self) -> None:
        self.events: queue.Queue[Sequence[ProcessEvent] | Exception] = queue.Queue()
        self.closed = False

    def read(self, timeout_s: float) -> Sequence[ProcessEvent]:
        try:
            events = self.events.get(timeout=min(timeout_s, 0.02))
        except queue.Empty:
            return ()
        if isinstance(events, Exception):
            raise events
        return events

    def close(self) -> None:
        self.closed = True


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def make() -> Iterator[Callable[..., ProcessEventFeed]]:
    """A factory; all are stopped at the end."""
    made: list[ProcessEventFeed] = []

    def life(subscribe=None, scan=lambda: (), wake=lambda: None, **options) -> ProcessEventFeed:
        made.append(ProcessEventFeed(subscribe, scan, 0.01, wake, **options))
        return made[-1]

    yield life
    for life_events in made:
        life_events.stop()


def test_events_are_taken_once_and_in_order(make):
    """A waiting reader is woken by new events."""
    woken: list[None] = []
    life = make(wake=lambda: woken.append(None))
    life.put([fork(23), fork(29)])
    life.put([fork(31)])
    assert life.take() == [fork(23), fork(29), fork(31)]
    assert life.take() == []
    life.put([fork(37)])
    assert (len(woken), life.events_total, life.gaps_total) == (2, 4, 0)


def test_what_finds_no_room_is_a_gap(make):
    """In place of everything that was there."""
    life = make(queue_max=100)
    for pid in range(2, 150):
        life.put([fork(pid)])
    assert life.take()[0] == GAP
    assert life.gaps_total == 1


def test_a_gap_that_the_kernel_tells_of_is_counted(make):
    """And passed on in its place."""
    life = make()
    life.put([fork(23), GAP, fork(29)])
    assert life.take() == [fork(23), GAP, fork(29)]
    assert life.gaps_total == 1


def test_a_subscription_begins_with_a_look_at_all(make):
    """Earlier processes have no events; that is not a gap."""
    subscription = Subscription()
    life = make(lambda: subscription)
    life.start()
    subscription.events.put([fork(23)])
    taken: list[ProcessEvent] = []
    until(lambda: bool(taken.extend(life.take())) or len(taken) == 2)
    assert taken == [GAP, fork(23)]
    assert (life.source, life.gaps_total) == ("events", 0)
    life.stop()
    assert subscription.closed


@pytest.mark.parametrize("is_urgent", [True, False])
def test_a_burst_is_gathered(make, is_urgent: bool):
    """For longer if there is no hurry; a full reading is followed by another at once."""
    subscription = Subscription()
    life = make(lambda: subscription)
    life.is_urgent = is_urgent
    life.start()
    until(lambda: GAP in life.take())
    began_s = time.monotonic()
    for pid in (range(2, 300), range(300, 600), [601], [602]):
        subscription.events.put([fork(number) for number in pid])
    taken: list[ProcessEvent] = []
    until(lambda: bool(taken.extend(life.take())) or len(taken) == 600 - 2 + 2)
    assert is_urgent or time.monotonic() - began_s > 0.09


def test_without_events_there_are_scans(make):
    """Which is tried again at times: the reason may pass."""
    subscription = Subscription()
    attempts: list[None] = []

    def subscribe() -> Subscription:
        attempts.append(None)
        if len(attempts) < 3:
            raise errors.KernelUnsupported("no events here")
        return subscription

    scans = iter(range(2, 1_000_000))
    life = make(subscribe, lambda: [fork(next(scans))], retry_s=0.05)
    life.start()
    until(lambda: fork(2) in life.take())
    assert life.source == "scan"
    until(lambda: life.source == "events")


def test_a_subscription_that_breaks_is_replaced(make):
    """Nothing of that reaches the daemon but a look at all."""
    first, second = Subscription(), Subscription()
    subscriptions = iter([first, second])
    life = make(lambda: next(subscriptions))
    life.start()
    first.events.put(OSError(103, "aborted"))
    second.events.put([fork(23)])
    taken: list[ProcessEvent] = []
    until(lambda: bool(taken.extend(life.take())) or fork(23) in taken)
    assert first.closed
    assert taken[-2:] == [GAP, fork(23)]


def test_a_scan_that_fails_is_tried_again(make):
    """After a bug, or without a /proc: the only thread that notices processes continues."""
    results = iter([OSError("no /proc"), ValueError("a bug"), [fork(23)]])

    def scan() -> Sequence[ProcessEvent]:
        result = next(results, [])
        if isinstance(result, Exception):
            raise result
        return result

    life = make(None, scan)
    life.start()
    until(lambda: fork(23) in life.take())
