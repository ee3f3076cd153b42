"""Line numbers in scripts. V8 creates its table of lines only on demand, but it keeps the text.

A text is read once. A tick reads a few megabytes at most, because a process may have any number of large
scripts.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from bpfleakd.runtimes.v8.heap_objects import HeapObjects
from bpfleakd.symbols.bounded_cache import BoundedCache

_SCRIPT_MAX_CHARACTERS = 16 << 20
_REFILL_BYTES = 32 << 20
_SCRIPTS_MAX = 256
# For four million lines.
_LINES_MAX_BYTES = 16 << 20
_NEWLINE = 10


class ScriptLines:
    """The ends of lines in the scripts of a process. `refill` renews the amount that may be read."""

    def __init__(self, heap: HeapObjects) -> None:
        self._heap = heap
        self._ends: BoundedCache[tuple[str, int], NDArray[np.uint32]] = BoundedCache(
            _SCRIPTS_MAX, lambda ends: ends.nbytes, _LINES_MAX_BYTES
        )
        self._left_bytes = _REFILL_BYTES

    def refill(self) -> None:
        """Start a new tick."""
        self._left_bytes = _REFILL_BYTES

    def line(self, script: str, source: int, position: int) -> int | None:
        """The line of a character of a script, from 1 on; None if its text cannot be read."""
        try:
            ends = self._ends_in(script, source)
        except (OSError, ValueError):
            return None
        return None if ends is None else bisect_left(ends, position) + 1

    def _ends_in(self, script: str, source: int) -> NDArray[np.uint32] | None:
        length = self._heap.length(source)
        known = self._ends.get((script, length))
        if known is not None:
            return known
        if length > _SCRIPT_MAX_CHARACTERS or self._left_bytes <= 0:
            return None
        data, width = self._heap.characters(source, 0, length)
        self._left_bytes -= len(data)
        characters = np.frombuffer(data, np.uint8 if width == 1 else np.uint16)
        ends = np.flatnonzero(characters == _NEWLINE).astype(np.uint32)
        self._ends.put((script, length), ends)
        return ends
