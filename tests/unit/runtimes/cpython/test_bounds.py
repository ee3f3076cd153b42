"""Bounds of containers, in this process' memory."""

from __future__ import annotations

import functools
import gc
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.bounds import bound_of
from bpfleakd.runtimes.cpython.containers import Container
from bpfleakd.runtimes.cpython.heap_reading import HeapTarget
from bpfleakd.runtimes.cpython.object_types import TypeNames

from .interpreters import target_of

_TABLE = {"dict": 32, "deque": 32, "list": 24}
VALUES = 300


class Ring(deque[int]):
    """A class of a program."""


@pytest.fixture(scope="module")
def target() -> HeapTarget:
    """The interpreter of this process."""
    return target_of(os.getpid())


@pytest.fixture
def bound(target: HeapTarget) -> Iterator[Callable[[Any], int | None]]:
    """The bound of a container of this process."""
    with RemoteMemory(target.pid) as memory:
        names = TypeNames(target.pid, memory, target.layout, target.types)

        def bound_of_this(values: Any) -> int | None:
            kind = next(one for one in _TABLE if one in str(type(values).__mro__))
            memory.renew()
            container = Container(id(values), kind, len(values), memory.word(id(values) + _TABLE[kind]))
            return bound_of(memory, target.layout, names, container)

        yield bound_of_this


def test_deques(bound: Callable[[Any], int | None]) -> None:
    """`maxlen` of a deque, also of a class that derives from it."""
    assert bound(deque(range(VALUES), maxlen=1_234)) == 1_234
    assert bound(Ring(range(VALUES), maxlen=VALUES)) == VALUES
    assert bound(deque(range(VALUES))) is None


@pytest.mark.parametrize("maxsize", [1_000, None])
@pytest.mark.parametrize("typed", [False, True])
def test_lru_caches(bound: Callable[[Any], int | None], maxsize: int | None, typed: bool) -> None:
    """`maxsize`, whichever values were used last; a cache without a bound holds its results themselves."""

    @functools.lru_cache(maxsize=maxsize, typed=typed)
    def squared(number: int) -> int:
        return number * number

    for number in range(VALUES):
        squared(number)
    [values] = [one for one in gc.get_referents(squared) if isinstance(one, dict) and len(one) == VALUES]
    assert bound(values) == maxsize
    for number in range(200):
        squared(number)
    assert bound(values) == maxsize


def test_other_containers(bound: Callable[[Any], int | None]) -> None:
    """A copy of the cache's dict is not the cache's, and has no bound."""

    @functools.lru_cache(maxsize=1_000)
    def squared(number: int) -> int:
        return number * number

    for number in range(VALUES):
        squared(number)
    [values] = [one for one in gc.get_referents(squared) if isinstance(one, dict) and len(one) == VALUES]
    assert bound(dict(values)) is None
    assert bound({number: str(number) for number in range(VALUES)}) is None
    assert bound(list(range(VALUES))) is None
