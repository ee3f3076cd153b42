"""A fair lock with pauses: one holder at a time, in order of requests, with a rest after long holds."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ReadingTurns:
    """A lock that threads get in the order of their requests, which threading.Lock does not guarantee."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked: deque[object] = deque()
        self._rested_s = 0.0

    @property
    def count(self) -> int:
        """The number of threads that hold or wait for it."""
        return len(self._asked)

    @contextmanager
    def turn(self, is_wanted: Callable[[], bool]) -> Iterator[bool]:
        """Wait for the turn, which ends with the block: True.

        False if it is no longer wanted (`look_again`).
        """
        own = object()
        with self._changed:
            self._asked.append(own)
            has_turn = self._wait(own, is_wanted)
        try:
            yield has_turn
        finally:
            with self._changed:
                self._asked.remove(own)
                self._changed.notify_all()

    def rest(self, pause_s: float) -> None:
        """Delay the next turn by at least `pause_s`; called by the holder."""
        self._rested_s = time.monotonic() + pause_s

    def look_again(self) -> None:
        """Let waiting threads check whether they still want their turn."""
        with self._changed:
            self._changed.notify_all()

    def _wait(self, own: object, is_wanted: Callable[[], bool]) -> bool:
        while is_wanted():
            rest_s = self._rested_s - time.monotonic()
            is_next = self._asked[0] is own
            if is_next and rest_s <= 0:
                return True
            self._changed.wait(rest_s if is_next else None)
        return False
