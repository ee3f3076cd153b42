"""What a process holds of the kernel's, beside memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bpfleakd.model.verdict import Verdict

__all__ = ["ResourceKind", "ResourceShare", "ResourceUse"]


class ResourceKind(StrEnum):
    """What is counted."""

    DESCRIPTORS = "descriptors"
    THREADS = "threads"


@dataclass(frozen=True, slots=True)
class ResourceShare:
    """What so large a share (0 to 1) of those that came since the attach are, in words."""

    what: str
    share: float


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """How many a process has, and whether they become ever more, as a verdict on a call site.

    `limit` is the maximum; None: unknown. `growth_per_min` is 0 unless they grow permanently. `shares` are
    filled while they grow, the largest first.
    """

    kind: ResourceKind
    count: int
    limit: int | None
    growth_per_min: float
    verdict: Verdict
    confidence: float
    reason: str
    shares: tuple[ResourceShare, ...] = ()
