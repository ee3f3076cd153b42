"""Bytes and count of Python's objects by type, read from outside."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from bpfleakd import errors
from bpfleakd.runtimes.cpython.heap_reading import HeapRequest, HeapTarget, ask, started
from bpfleakd.runtimes.runtime import RuntimeFailure, TypeCount

_STOP_S = 0.3
_TIMEOUT_S = 120.0


class PythonTypes:
    """All objects of one process, each with its whole block, including the collector's header."""

    work = "a copy of the memory of its objects"
    # Cycles that wait for the collector.
    includes_garbage = True

    def __init__(self, target: HeapTarget) -> None:
        self._target = target

    def price_s(self) -> float:
        """The process is stopped for at most this long; the rest is read while it runs."""
        return _STOP_S

    def read(self) -> Sequence[TypeCount]:
        """All types, most bytes first. Raises RuntimeFailure."""
        return self._read(HeapRequest(self._target, _STOP_S, large=True))

    def read_running(self) -> Sequence[TypeCount]:
        """The same for objects found in two readings. Raises RuntimeFailure."""
        return self._read(HeapRequest(self._target, twice=True, large=True))

    @staticmethod
    def _read(request: HeapRequest) -> Sequence[TypeCount]:
        try:
            with closing(started()) as child:
                reading = ask(child, request, _TIMEOUT_S)
        except errors.BpfleakdError as error:
            raise RuntimeFailure(error.message) from error
        return [TypeCount(name, size, count) for name, size, count in reading.counts]
