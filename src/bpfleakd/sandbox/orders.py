"""What the daemon and its helpers say to each other."""

from __future__ import annotations

import msgspec

__all__ = ["Failure", "Order"]


class Order(msgspec.Struct):
    """A job, and what it may take: memory, CPU time (whole seconds) and time by the clock."""

    job: str
    memory_bytes: int
    cpu_s: int
    real_s: float


class Failure(msgspec.Struct, tag=True):
    """A job that could not be done, and why: a sentence that may hold what the file says."""

    reason: str
