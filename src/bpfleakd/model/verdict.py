"""Verdicts on a call site and on a process."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from bpfleakd.model.limit import MemoryLimit


class Verdict(StrEnum):
    """What becomes of the memory of a call site.

    LEAK grows persistently, and old blocks stay. GROWING may become a leak: it is too early, or it may be a
    cache that fills. PLATEAU grew and stopped. STEADY neither allocates nor frees, CHURN does both. UNKNOWN:
    observed too little, or too much was missed.
    """

    LEAK = "leak"
    GROWING = "growing"
    PLATEAU = "plateau"
    STEADY = "steady"
    CHURN = "churn"
    UNKNOWN = "unknown"


# In order of importance.
VERDICTS = (
    Verdict.LEAK,
    Verdict.GROWING,
    Verdict.PLATEAU,
    Verdict.UNKNOWN,
    Verdict.CHURN,
    Verdict.STEADY,
)


class SiteVerdict(Struct, frozen=True):
    """A verdict on a call site, the evidence for it from 0 to 1, and the reason in words.

    `leak_bytes_per_s` is the memory that it permanently retains per second, for LEAK and GROWING, else 0.
    """

    verdict: Verdict
    confidence: float
    reason: str
    leak_bytes_per_s: float


def churn_words(live_count: int, allocated_count: int) -> str:
    """The reason for churn, if only counters are known."""
    if live_count == 0:
        return f"all {allocated_count:,} blocks were freed again"
    return f"{allocated_count - live_count:,} of {allocated_count:,} blocks were freed again"


class ProcessVerdict(Struct, frozen=True):
    """Whether a process leaks, and the reason in words.

    `leak_bytes_per_s` is the sum over its leaking call sites. `memory_bytes_per_s` is how fast its anonymous
    memory grows, between `_low` and `_high` with 95 % confidence; None while unknown. `explained_share`, 0 to
    1, is the share of leaking and growing call sites in that; None if it does not grow. `limit` is the one
    with the least room, or that of a leaking managed heap, if that is reached earlier. `limit_reached_s` is
    the time until it is reached at this rate; None if no prediction is possible.
    """

    verdict: Verdict
    reason: str
    leak_bytes_per_s: float
    memory_bytes_per_s: float | None
    memory_bytes_per_s_low: float | None
    memory_bytes_per_s_high: float | None
    explained_share: float | None
    limit: MemoryLimit | None
    limit_reached_s: float | None
