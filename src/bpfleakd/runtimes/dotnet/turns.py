"""Turns at something of which only so much is done at a time, so that no user takes all of them."""

from __future__ import annotations

import threading
from collections import Counter

__all__ = ["Turns"]


class Turns:
    """At most `in_all` turns at a time, and `of_one` of the same user. Thread-safe."""

    def __init__(self, in_all: int, of_one: int) -> None:
        self._in_all, self._of_one = in_all, of_one
        self._lock = threading.Lock()
        self._taken: Counter[int] = Counter()

    def take(self, uid: int) -> bool:
        """Take a turn, if there is one."""
        with self._lock:
            if self._taken.total() >= self._in_all or self._taken[uid] >= self._of_one:
                return False
            self._taken[uid] += 1
            return True

    def give_back(self, uid: int) -> None:
        """End a turn that was taken."""
        with self._lock:
            self._taken -= Counter((uid,))
