"""What a process holds of the kernel's, beside memory."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from bpfleakd.model.code.stack import Frame, StackEnd
from bpfleakd.model.verdict import Verdict

__all__ = [
    "DescriptorSite",
    "DescriptorTotals",
    "RecordedDescriptors",
    "ResourceKind",
    "ResourceShare",
    "ResourceUse",
]


class RecordedDescriptors(StrEnum):
    """Of which traced processes the call sites that open descriptors are recorded."""

    GROWING = "growing"
    ALWAYS = "always"
    NEVER = "never"


class ResourceKind(StrEnum):
    """What is counted."""

    DESCRIPTORS = "descriptors"
    THREADS = "threads"


class ResourceShare(Struct, frozen=True):
    """What so large a share (0 to 1) of those that came since the attach are, in words."""

    what: str
    share: float


class ResourceUse(Struct, frozen=True):
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


class DescriptorSite(Struct, frozen=True):
    """A call site that opens file descriptors, and how many of those it opened are open (`open_count`).

    `opened_count` includes closed ones; both are of the time since descriptors are recorded. `site` is the
    fingerprint of the stack. `growth_per_min` is 0 unless they grow permanently. `shares` are filled for the
    sites with the most, the largest share first. `called_by` is as in SiteReport.
    """

    site: str
    function: str | None
    module: str | None
    location: str | None
    open_count: int
    opened_count: int
    growth_per_min: float
    oldest_age_s: float
    verdict: Verdict
    confidence: float
    stack: tuple[Frame, ...]
    truncated: StackEnd | None
    shares: tuple[ResourceShare, ...] = ()
    called_by: Frame | None = None


class DescriptorTotals(Struct, frozen=True):
    """All open file descriptors of a process whose descriptors are recorded: the sum of three counts.

    `recorded_count` belong to call sites. `earlier_count` have been open since before this daemon began to
    look. `other_count` came since, by a way that is not recorded; of these `other_growth_per_min` is 0 unless
    they grow permanently, `other_shares` are what they are, the largest share first, and `other_reason` has
    all this in words, "" if there are none.
    """

    open_count: int
    recorded_count: int
    earlier_count: int
    other_count: int
    other_growth_per_min: float
    other_reason: str
    other_shares: tuple[ResourceShare, ...] = ()
