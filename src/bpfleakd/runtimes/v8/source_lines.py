"""Lines of scripts: V8 keeps no table of them until somebody asks, but it keeps the text.

Texts are read once, and a few megabytes at a time: a process may have as many and as large ones as it likes.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from bpfleakd.runtimes.v8.heap_objects import HeapObjects

__all__ = ["ScriptLines"]

_SCRIPT_MAX_CHARACTERS = 16 << 20
_REFILL_BYTES = 32 << 20
_SCRIPTS_MAX = 256
_NEWLINE = 10


class ScriptLines:
    """Where lines end in the scripts of a process. After `refill` so much may be read again."""

    def __init__(self, heap: HeapObjects) -> None:
        self._heap = heap
        self._ends: dict[tuple[str, int], NDArray[np.int64]] = {}
        self._left_bytes = _REFILL_BYTES

    def refill(self) -> None:
        """A new tick begins."""
        self._left_bytes = _REFILL_BYTES

    def line(self, script: str, source: int, position: int) -> int | None:
        """The line of a character of a script, from 1 on; None if its text cannot be read."""
        try:
            ends = self._ends_in(script, source)
        except (OSError, ValueError):
            return None
        return None if ends is None else bisect_left(ends, position) + 1

    def _ends_in(self, script: str, source: int) -> NDArray[np.int64] | None:
        length = self._heap.length(source)
        known = self._ends.get((script, length))
        if known is not None:
            return known
        if length > _SCRIPT_MAX_CHARACTERS or self._left_bytes <= 0:
            return None
        data, width = self._heap.characters(source, length)
        self._left_bytes -= len(data)
        characters = np.frombuffer(data, np.uint8 if width == 1 else np.uint16)
        ends = np.flatnonzero(characters == _NEWLINE)
        if len(self._ends) >= _SCRIPTS_MAX:
            del self._ends[next(iter(self._ends))]
        self._ends[script, length] = ends
        return ends
