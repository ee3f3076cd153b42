"""Containers through readings: which grow."""

from __future__ import annotations

from bpfleakd.runtimes.cpython.containers import Container
from bpfleakd.runtimes.cpython.growing import GrowingContainers


def taken(*sizes: int, kind: str = "list") -> GrowingContainers:
    """A container with these sizes, read every 5 s."""
    found = GrowingContainers()
    for number, size in enumerate(sizes):
        found.take(5.0 * number, [Container(0x1000, kind, size, 0x2000 + number)])
    return found


def test_what_only_becomes_larger_grows() -> None:
    """Its rate in values a second, at its last place."""
    (one,) = taken(100, 200, 300, 400, 500).growing()
    assert one.growth_per_s == 20
    assert (one.container.size, one.table) == (500, 0x2004)


def test_a_few_values_more_are_no_growth() -> None:
    """And too few steps of growth do not count either."""
    assert taken(100, 101, 102, 103, 104, 105).growing() == []
    assert taken(100, 1_000, 10_000, 100_000).growing() == []


def test_what_shrinks_begins_anew() -> None:
    """A queue that drains, or a cache that throws out, whatever it has grown before."""
    assert taken(100, 200, 300, 400, 500, 499).growing() == []
    (one,) = taken(900, 100, 200, 300, 400, 500).growing()
    assert one.growth_per_s == 20


def test_what_has_stopped_does_not_grow() -> None:
    """A cache that is full."""
    sizes = (100, 200, 300, 400, 500)
    assert taken(*sizes, 500, 500).growing() != []
    assert taken(*sizes, 500, 500, 500).growing() == []


def test_a_leak_may_pause() -> None:
    """As long as it is larger at most readings."""
    assert taken(100, 200, 200, 300, 400, 400, 500, 600).growing() != []
    assert taken(*sorted([100, 200, 300, 400, 500] * 4)).growing() == []


def test_a_deque_grows_at_either_end() -> None:
    """The function that made the newest block is blamed."""
    found = GrowingContainers()
    for number in range(5):
        at_end = Container(0x1000, "deque", 100 * (number + 1), 0x2000 + number, 0x9000)
        at_beginning = Container(0x3000, "deque", 100 * (number + 1), 0x4000, 0x5000 + number)
        found.take(5.0 * number, [at_end, at_beginning])
    assert {one.container.address: one.table for one in found.growing()} == {0x1000: 0x2004, 0x3000: 0x5004}


def test_another_container_at_the_same_address_is_another() -> None:
    """As is one that was gone in between."""
    found = taken(100, 200, 300, 400)
    found.take(20.0, [Container(0x1000, "dict", 500, 0x3000)])
    assert found.growing() == []
    found = taken(100, 200, 300, 400)
    found.take(20.0, [])
    found.take(25.0, [Container(0x1000, "list", 500, 0x3000)])
    assert found.growing() == []


def test_those_that_rose_last_are_asked_about() -> None:
    """Not those that stand still, or have just come."""
    assert list(taken(100, 200).rising(5)) == [0x1000]
    assert list(taken(100).rising(5)) == []
    assert list(taken(100, 200, 200).rising(5)) == []
