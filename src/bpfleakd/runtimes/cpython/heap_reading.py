"""A reading of Python's object heap: the request to a child process, and its answer.

Reading takes memory in proportion to the heap; a fork of the child returns it when it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from bpfleakd.kernel.children.child_series import ChildSeries
from bpfleakd.runtimes.cpython.code_object import ObjectTypes
from bpfleakd.runtimes.cpython.containers import Container
from bpfleakd.runtimes.cpython.layout import CPythonLayout
from bpfleakd.runtimes.cpython.turns import ReadingTurns

ReadingChild: TypeAlias = ChildSeries
_WORKER = "bpfleakd.runtimes.cpython.heap_worker"


class HeapTarget(Struct, frozen=True):
    """The process, and the layout of its interpreter."""

    pid: int
    layout: CPythonLayout
    types: ObjectTypes


class HeapRequest(Struct, frozen=True):
    """A reading to make.

    The process is stopped for at most `stop_s`; with 0 it keeps running, and objects that are not found twice
    are left out. `large`: includes objects of more than 512 bytes. `watched`: containers for which the types
    of values and the bound are wanted.
    """

    target: HeapTarget
    stop_s: float = 0.0
    twice: bool = False
    large: bool = False
    watched: tuple[int, ...] = ()


class HeapReading(Struct, frozen=True):
    """Types with bytes and count, most bytes first, and the largest containers.

    `value_types` are the types of values by container, `bounds` the most values that it can have.
    """

    live_bytes: int
    counts: tuple[tuple[str, int, int], ...]
    containers: tuple[Container, ...]
    value_types: dict[int, tuple[str, ...]]
    bounds: dict[int, int]
    stopped_s: float
    took_s: float


class SharedReader:
    """The child that reads the heaps of several processes in turn. It stays while readings wait."""

    def __init__(self) -> None:
        self.turns = ReadingTurns()
        self._lock = threading.Lock()
        self._idle: ReadingChild | None = None

    @contextmanager
    def child(self) -> Iterator[ReadingChild]:
        """The child, for the holder of the turn. It ends if the block raises."""
        with self._lock:
            child, self._idle = self._idle, None
        child = child or started()
        try:
            yield child
        except BaseException:
            child.close()
            raise
        with self._lock:
            self._idle = child

    def end_if_idle(self) -> None:
        """End the child if nobody has or awaits a turn; called after each turn."""
        with self._lock:
            if self._idle is None or self.turns.count:
                return
            child, self._idle = self._idle, None
        child.close()


def started() -> ReadingChild:
    """A new child for requests."""
    return ChildSeries(_WORKER)


def ask(child: ReadingChild, request: HeapRequest, timeout_s: float) -> HeapReading:
    """The answer of the child. Raises the errors of ChildSeries.ask."""
    reply: Any = child.ask(msgspec.to_builtins(request), timeout_s)
    return msgspec.convert(reply, HeapReading, strict=False)
