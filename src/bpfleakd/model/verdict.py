"""What is said of a call site and of a process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bpfleakd.model.limit import MemoryLimit

__all__ = ["VERDICTS", "ProcessVerdict", "SiteVerdict", "Verdict"]


class Verdict(StrEnum):
    """What becomes of the memory of a call site.

    LEAK grows persistently, and what is old stays. GROWING may become one: it is too early, or may be a cache
    that fills. PLATEAU grew and stopped. STEADY neither takes nor gives back, CHURN does both. UNKNOWN is
    too little, or too much was missed.
    """

    LEAK = "leak"
    GROWING = "growing"
    PLATEAU = "plateau"
    STEADY = "steady"
    CHURN = "churn"
    UNKNOWN = "unknown"


# By how much attention they deserve.
VERDICTS = (
    Verdict.LEAK,
    Verdict.GROWING,
    Verdict.PLATEAU,
    Verdict.UNKNOWN,
    Verdict.CHURN,
    Verdict.STEADY,
)


@dataclass(frozen=True, slots=True)
class SiteVerdict:
    """A verdict on a call site, the evidence for it from 0 to 1, and why, in words.

    `leak_bytes_per_s` is what it gains for good, if it is a leak or may become one, else 0.
    """

    verdict: Verdict
    confidence: float
    reason: str
    leak_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ProcessVerdict:
    """Whether a process leaks, and why it is thought so, in words.

    `leak_bytes_per_s` is what its call sites leak together. `memory_bytes_per_s` is how fast its anonymous
    memory grows, between `_low` and `_high` with 95 % confidence; None while that cannot be told.
    `explained_share`, 0 to 1, is what the call sites that leak or grow gain of that; None if it does not
    grow. `limit` is the one with the least room, `limit_reached_s` when it is used up at this rate; None if
    that is not to be foreseen.
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
