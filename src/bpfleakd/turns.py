"""Limits the number of simultaneous turns, in total and per owner."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Generic, TypeVar

Owner = TypeVar("Owner")


class Turns(Generic[Owner]):
    """At most `in_all` turns at a time, and `of_one` of the same owner. Thread-safe."""

    def __init__(self, in_all: int, of_one: int) -> None:
        self._in_all, self._of_one = in_all, of_one
        self._lock = threading.Lock()
        self._taken: Counter[Owner] = Counter()

    def take(self, owner: Owner) -> bool:
        """Take a turn, if there is one."""
        with self._lock:
            if self._taken.total() >= self._in_all or self._taken[owner] >= self._of_one:
                return False
            self._taken[owner] += 1
            return True

    def give_back(self, owner: Owner) -> None:
        """End a turn that was taken."""
        with self._lock:
            self._taken -= Counter((owner,))
