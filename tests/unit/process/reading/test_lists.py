"""Lists in memory, as allocators keep them, followed many at a time: by this process, and by another."""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Iterator

import pytest

from bpfleakd.process.reading.apart import ReadsApart
from bpfleakd.process.reading.reads import using
from bpfleakd.process.remote_memory import RemoteMemory

ELEMENTS = 60_000
ELEMENT_BYTES = 32


class Lists:
    """Elements of four words, in no order."""

    def __init__(self) -> None:
        self._words = (ctypes.c_uint64 * (4 * ELEMENTS))()
        start = ctypes.addressof(self._words)
        self._free = [start + ELEMENT_BYTES * place for place in range(ELEMENTS)]
        random.Random(4711).shuffle(self._free)
        self.start = start

    def write(self, element: int, word: int, value: int) -> None:
        self._words[(element - self.start) // 8 + word] = value

    def ring(self, length: int) -> tuple[tuple[int, int, int], list[int]]:
        """Its end, first and last element; and all elements."""
        end, *elements = (self._free.pop() for _ in range(length + 1))
        circle = [end, *elements, end]
        for before, here, after in zip(circle, circle[1:], circle[2:], strict=False):
            self.write(here, 2, after)
            self.write(here, 3, before)
        return (end, elements[0], elements[-1]), elements

    def chain(self, length: int, *, behind_bytes: int = 0, is_mangled: bool = False) -> list[int]:
        elements = [self._free.pop() for _ in range(length)]
        for here, after in zip(elements, [*elements[1:], None], strict=True):
            link = 0 if after is None else after + behind_bytes
            self.write(here, 2, link ^ (here + 16 >> 12) if is_mangled else link)
        return elements


@pytest.fixture
def lists() -> Lists:
    return Lists()


@pytest.fixture(params=["direct", "apart"])
def memory(request: pytest.FixtureRequest) -> Iterator[RemoteMemory]:
    if request.param == "direct":
        with RemoteMemory(os.getpid()) as memory:
            yield memory
        return
    apart = ReadsApart()
    with using(apart), RemoteMemory(os.getpid()) as memory:
        yield memory
    apart.end()


def test_rings_of_any_length(memory: RemoteMemory, lists: Lists) -> None:
    """All elements of all rings; more of them than one request takes, and more rings."""
    rings = [lists.ring(length) for length in (1, 2, 3, 4, 31_000, *(1 + n % 7 for n in range(700)))]
    found = memory.rings([ring for ring, _elements in rings], ELEMENTS)
    wanted = [element for _ring, elements in rings for element in elements]
    assert sorted(set(found.addresses.tolist())) == sorted(wanted)
    # A bad link in the middle: the list is read from both sides.
    assert len(found.addresses) <= len(wanted) + len(rings)
    assert found.cut == 0


def test_a_ring_that_leads_away(memory: RemoteMemory, lists: Lists) -> None:
    """To unmapped memory, or past the list's head: it is cut, and the others are whole."""
    (gone, elements), (whole, others) = lists.ring(9), lists.ring(30)
    lists.write(elements[2], 2, 8)
    found = memory.rings([gone, whole], ELEMENTS)
    assert found.cut == 1
    assert set(others) <= set(found.addresses.tolist())

    (crossed, elements), (whole, others) = lists.ring(10), lists.ring(30)
    lists.write(elements[4], 2, elements[6])
    lists.write(elements[5], 3, elements[3])
    found = memory.rings([crossed, whole], ELEMENTS)
    assert found.cut == 1
    assert set(others) <= set(found.addresses.tolist())


def test_a_ring_without_an_end(memory: RemoteMemory, lists: Lists) -> None:
    """It is followed up to the requested length, and no further."""
    (_end, first, _last), elements = lists.ring(10)
    lists.write(elements[4], 2, elements[0])
    lists.write(elements[6], 3, elements[9])
    found = memory.rings([(_end, first, elements[9])], 1_000)
    assert found.cut == 1
    assert 900 < len(found.addresses) <= 1_000


@pytest.mark.parametrize("is_mangled", [False, True])
def test_chains(memory: RemoteMemory, lists: Lists, is_mangled: bool) -> None:
    """As fast bins and the caches of threads are."""
    chains = [lists.chain(length, behind_bytes=16, is_mangled=is_mangled) for length in (1, 2, 28_000, 7, 7)]
    found = memory.chains([chain[0] for chain in chains], ELEMENTS, behind_bytes=16, is_mangled=is_mangled)
    assert sorted(found.addresses.tolist()) == sorted(element for chain in chains for element in chain)
    assert found.cut == 0
    lists.write(chains[3][2], 2, 8)
    found = memory.chains([chains[3][0], chains[4][0]], ELEMENTS, behind_bytes=16, is_mangled=is_mangled)
    assert found.cut == 1
    assert set(chains[4]) <= set(found.addresses.tolist())


def test_nothing_is_asked_for_without_lists(memory: RemoteMemory) -> None:
    """And none is found."""
    assert len(memory.rings([], 10).addresses) == 0
    assert memory.gather([], 8) == []


def test_gathering_where_some_cannot_be_read(memory: RemoteMemory, lists: Lists) -> None:
    """The others are as they are, however many."""
    places = [8 if place % 3 == 1 else lists.start + 8 * (place % 1_000) for place in range(5_000)]
    for place in range(250):
        lists.write(lists.start + ELEMENT_BYTES * place, 0, place)
    found = memory.gather(places, 8)
    assert [len(each) for each in found] == [0 if place == 8 else 8 for place in places]
    assert int.from_bytes(found[4 * 3], "little") == 3
