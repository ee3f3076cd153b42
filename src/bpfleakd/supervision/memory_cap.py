"""What the daemon does when it takes more memory than it may: figures in, a step out.

First the caches go, which costs time and no figure; if that was not enough, the process that takes the most
room is detached, and after a while the next. Times are of any clock that only rises.
"""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["MemoryCap", "MemoryStep"]

# Memory that was freed is given back within a few ticks.
_SETTLE_S = 5.0
# Caches that were dropped so lately cannot be what is too much.
_CACHES_S = 60.0


class MemoryStep(Enum):
    """What is to be done now."""

    NOTHING = auto()
    DROP_CACHES = auto()
    RELEASE_LARGEST = auto()


class MemoryCap:
    """Watches over `limit_bytes` of resident memory."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._settled_s = float("-inf")
        self._shed_s = float("-inf")

    def step(self, now_s: float, resident_bytes: int) -> MemoryStep:
        """What is to be done at this size; called again and again."""
        if resident_bytes <= self.limit_bytes or now_s < self._settled_s:
            return MemoryStep.NOTHING
        self._settled_s = now_s + _SETTLE_S
        if now_s - self._shed_s >= _CACHES_S:
            self._shed_s = now_s
            return MemoryStep.DROP_CACHES
        return MemoryStep.RELEASE_LARGEST
