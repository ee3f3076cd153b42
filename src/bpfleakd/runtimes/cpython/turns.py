"""One at a time, whoever asked first is next, and a rest after what took long."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["ReadingTurns"]


class ReadingTurns:
    """A lock that threads get in the order in which they asked, which threading.Lock does not promise."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked: deque[object] = deque()
        self._rested_s = 0.0

    @property
    def count(self) -> int:
        """How many have a turn or wait for one."""
        return len(self._asked)

    @contextmanager
    def turn(self, is_wanted: Callable[[], bool]) -> Iterator[bool]:
        """Wait for the turn, which ends with the block: True. False if it is not wanted (`look_again`)."""
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
        """To be called by whoever has the turn: the next one begins in `pause_s` at the earliest."""
        self._rested_s = time.monotonic() + pause_s

    def look_again(self) -> None:
        """Let those that wait see whether their turn is still wanted."""
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
