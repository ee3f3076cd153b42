"""The collector of cycles, read from this process' memory and followed through time."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from bpfleakd.runtimes.cpython.collector import CollectorLooks, CollectorState

from .interpreters import runtime_of

NS_PER_S = 1_000_000_000
STATE = CollectorState(True, 0, 3, threshold=10, since_full=0, objects=40_000, pending=0)


@pytest.fixture
def collector() -> Iterator[list[int]]:
    """Ends with the collector as it was."""
    threshold = gc.get_threshold()
    yield [*threshold]
    gc.set_threshold(*threshold)
    gc.enable()


def own_state() -> CollectorState:
    """The collector of this process, from outside."""
    found = runtime_of(os.getpid())
    assert found.live_heap is not None
    state = found.live_heap._collector()
    found.close()
    assert state is not None
    return state


@pytest.mark.usefixtures("collector")
def test_its_counters_are_those_that_python_tells() -> None:
    """Collections, thresholds, and whether it runs at all."""
    gc.disable()
    gc.collect()
    before = gc.get_stats()
    state = own_state()
    assert not state.is_enabled
    assert (state.middle_count, state.full_count) == (before[1]["collections"], before[2]["collections"])
    assert (state.threshold, state.since_full, state.pending) == (gc.get_threshold()[2], 0, 0)
    assert state.objects == pytest.approx(len(gc.get_objects()), rel=0.2)
    gc.enable()
    gc.collect(1)
    gc.collect()
    gc.collect(1)
    gc.set_threshold(0)
    assert not own_state().is_enabled
    gc.set_threshold(700, 10, 7)
    state = own_state()
    assert state.is_enabled
    assert state.threshold == 7
    assert state.full_count == before[2]["collections"] + 1
    assert state.middle_count >= before[1]["collections"] + 2


def looks(*states: tuple[float, CollectorState | None]) -> CollectorLooks:
    """After these states."""
    found = CollectorLooks()
    for at_s, state in states:
        found.take(round(at_s * NS_PER_S), state)
    return found


def test_a_full_collection_has_looked_at_what_was_there_before() -> None:
    """Before the reading that preceded it: it may have come right after that."""
    later = replace(STATE, full_count=4)
    found = looks((10, STATE), (20, STATE), (30, later), (40, later))
    assert (found.looked_ns, found.count) == (20 * NS_PER_S, 1)


def test_when_the_next_one_comes() -> None:
    """After as many middle collections and as many old objects as it needs, at the rates since the last."""
    middle = replace(STATE, middle_count=4, since_full=4, pending=1_000)
    found = looks((0, STATE), (20, middle))
    # Nine thousand objects at 50/s take longer than seven collections at 0.2/s.
    assert found.due_s() == pytest.approx(180)
    found = looks((0, STATE), (20, replace(middle, pending=9_000)))
    assert found.due_s() == pytest.approx(35)
    found = looks((0, STATE), (20, replace(middle, pending=12_000, since_full=11)))
    assert found.due_s() == 0


@pytest.mark.parametrize(
    "last", [STATE, replace(STATE, middle_count=9, since_full=9), replace(STATE, is_enabled=False), None]
)
def test_it_may_never_come(last: CollectorState | None) -> None:
    """Nothing is allocated, nothing stays, it is switched off, or nothing is known."""
    found = looks((0, STATE), (20, last))
    assert found.due_s() == math.inf


def test_the_beginning_tells_nothing() -> None:
    """One state has no rates, nor has the first one after another program has taken the place."""
    assert looks((0, STATE)).due_s() == 0
    found = looks((0, STATE), (20, replace(STATE, full_count=0)))
    assert (found.due_s(), found.count, found.looked_ns) == (0, 0, None)
