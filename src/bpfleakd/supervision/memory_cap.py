"""What the daemon does when it takes more memory than it may: figures in, a step out.

First the caches are dropped, which costs time but no figures. If that is not enough, the largest process is
detached, and after a while the next. Times come from any monotonic clock.
"""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["MemoryCap", "MemoryStep"]

# Freed memory returns to the kernel within a few ticks.
_SETTLE_S = 5.0
# Caches that were dropped so lately cannot be what is too much.
_CACHES_S = 60.0


class MemoryStep(Enum):
    """What to do now."""

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
        """What to do at this size; called again and again."""
        if resident_bytes <= self.limit_bytes or now_s < self._settled_s:
            return MemoryStep.NOTHING
        self._settled_s = now_s + _SETTLE_S
        if now_s - self._shed_s >= _CACHES_S:
            self._shed_s = now_s
            return MemoryStep.DROP_CACHES
        return MemoryStep.RELEASE_LARGEST
