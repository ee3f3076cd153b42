"""What the daemon does when it exceeds its memory limit.

First it drops the caches, which costs time but no figures. If that is not enough, it detaches the largest
process, and after a while the next. Times come from any monotonic clock.
"""

from __future__ import annotations

from enum import Enum, auto

# Freed memory returns to the kernel within a few ticks.
_SETTLE_S = 5.0
# Caches dropped more recently than this cannot be the cause.
_CACHES_S = 60.0


class MemoryStep(Enum):
    """The next measure."""

    NOTHING = auto()
    DROP_CACHES = auto()
    RELEASE_LARGEST = auto()


class MemoryCap:
    """Enforces a limit of `limit_bytes` on resident memory."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._settled_s = float("-inf")
        self._shed_s = float("-inf")

    def step(self, now_s: float, resident_bytes: int) -> MemoryStep:
        """The measure for this size; call it again and again."""
        if resident_bytes <= self.limit_bytes or now_s < self._settled_s:
            return MemoryStep.NOTHING
        self._settled_s = now_s + _SETTLE_S
        if now_s - self._shed_s >= _CACHES_S:
            self._shed_s = now_s
            return MemoryStep.DROP_CACHES
        return MemoryStep.RELEASE_LARGEST
