"""Readings of the object heap of a real process, through time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from bpfleakd.model.code.stack import RawStack, StackEnd
from bpfleakd.runtimes.cpython.collector import CollectorState
from bpfleakd.runtimes.cpython.containers import Container
from bpfleakd.runtimes.cpython.heap_reading import HeapTarget, SharedReader
from bpfleakd.runtimes.cpython.object_heap import ObjectHeap
from bpfleakd.runtimes.runtime import CycleGarbage
from tests.unit.waiting import until

from .interpreters import target_of

PROGRAM = "print('ready', flush=True); input()"
# Due long ago.
LONG_AGO_NS = 0
LATER_NS = 10**18


def no_collector() -> None:
    """Nothing is known of it."""


@pytest.fixture
def target() -> Iterator[HeapTarget]:
    """A process that waits, and its interpreter."""
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            yield target_of(child.pid)
        finally:
            child.kill()


def test_a_heap_that_waits_for_its_turn(target: HeapTarget) -> None:
    """A closed heap neither waits nor reads, however long the previous one takes; another one then reads."""
    reader = SharedReader()
    turns = reader.turns
    closed, other = (ObjectHeap(target, no_collector, LONG_AGO_NS, reader) for _ in range(2))
    with turns.turn(lambda: True):
        for heap in (closed, other):
            assert not heap.read(LATER_NS)
        until(lambda: turns.count == 3)
        closed.close()
        until(lambda: turns.count == 2)
        assert not other.read(LATER_NS)
    (reading,) = until(lambda: other.read(LATER_NS))
    assert reading.live_bytes > 100_000
    assert not closed.read(LATER_NS)
    other.close()


def test_one_child_reads_all_heaps_that_wait() -> None:
    """It ends when no reading waits any more, or after a failure."""
    reader = SharedReader()
    with reader.turns.turn(lambda: True):
        with reader.child() as first:
            pass
        reader.end_if_idle()
        with contextlib.suppress(ValueError), reader.child() as again:
            assert again is first
            raise ValueError
        with reader.child() as second:
            assert second is not first
    reader.end_if_idle()
    with reader.child() as third:
        assert third is not second
    reader.end_if_idle()


def test_many_containers_of_one_site_are_summed(target: HeapTarget) -> None:
    """Three hundred lists that one function fills, a few values a second each; and a deque of another."""
    heap = ObjectHeap(target, no_collector, LATER_NS, SharedReader())
    lists = range(0x1000, 0x1000 + 300)
    for at_s in range(8):
        found = [Container(one, "list", 200 + 20 * at_s, one * 0x100 + at_s) for one in lists]
        shared = Container(0x9000, "deque", 500 + 100 * at_s, 0x9100 + at_s, 0x9500, is_own=False)
        heap._growing.take(float(at_s), [*found, shared])
    looked_up: list[int] = []

    def stack_of(block: int) -> RawStack:
        looked_up.append(block)
        return RawStack((7, 8), StackEnd.BOTTOM)

    for _tick in range(3):
        heap.charge(stack_of)
    heap._values = {0x1000: ("tuple",), 0x1001: ("tuple", "str"), 0x9000: ("int",)}
    filled, other = heap.retained()
    assert (filled.type, filled.container, filled.container_count) == (
        "tuple",
        "300 lists with 102,000 values",
        300,
    )
    assert filled.growth_per_s == pytest.approx(6_000)
    assert filled.growth_bytes_per_s == pytest.approx(48_000)
    assert filled.raw_stack == RawStack((7, 8), StackEnd.BOTTOM)
    # Its blocks may be of another deque's time.
    assert (other.container, other.raw_stack) == ("deque of 1,200", None)
    assert len(looked_up) == 300, "once for each table"
    heap.close()


def test_growth_that_may_be_garbage(target: HeapTarget) -> None:
    """While a full collection is soon expected, and no container without a bound gains values."""
    state = CollectorState(True, 0, 3, threshold=10, since_full=0, objects=40_000, pending=0)
    later = replace(state, middle_count=5, since_full=5, pending=5_000)
    states = [state, later, replace(state, full_count=4)]
    heap = ObjectHeap(target, lambda: states.pop(0), 0, SharedReader())
    for at_s in (10, 60, 110):
        heap._look(at_s * 1_000_000_000)
        assert heap._may_be_garbage(at_s + 300.0)
        # Six more collections of the middle generation take 60 s.
        assert heap._may_be_garbage(580.0) is (at_s != 60)
        assert heap._is_collected() is (at_s == 110)
        assert not heap._is_collected(), "each counts once"
    assert heap.cycles == CycleGarbage(60_000_000_000, 0.0, knows_containers=False)
    for at_s in range(8):
        heap._growing.take(float(at_s), [Container(0x1000, "deque", 100 + 90 * at_s, 0x2000 + at_s)])
    heap._bounds = {0x1000: 9_000}
    assert heap._may_be_garbage(100.0)
    assert [(one.bound, one.container) for one in heap.retained()] == [(9_000, "deque of 730")]
    heap._bounds = {}
    assert not heap._may_be_garbage(100.0)
    heap.close()


@pytest.mark.parametrize("name", ["weakref", "weakref.ReferenceType", "weakref.KeyedRef"])
def test_a_set_of_weak_references_keeps_nothing(target: HeapTarget, name: str) -> None:
    """It refers to objects that others keep; if there is no other, it is all that is known."""
    heap = ObjectHeap(target, no_collector, LATER_NS, SharedReader())
    for at_s in range(8):
        sizes = {0x1000: 1_000 + 90 * at_s, 0x2000: 1_001 + 90 * at_s}
        heap._growing.take(float(at_s), [Container(one, "set", size, one + 8) for one, size in sizes.items()])
    heap._values = {0x1000: ("asyncio.Task",), 0x2000: (name,)}
    assert [one.type for one in heap.retained()] == ["asyncio.Task"]
    heap._values[0x1000] = (name,)
    assert len(heap.retained()) == 2
    heap.close()
