"""Kernel resources of a process other than memory."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from bpfleakd.model.code.stack import Frame, StackEnd
from bpfleakd.model.verdict import Verdict


class RecordedDescriptors(StrEnum):
    """The traced processes whose descriptor-opening call sites are recorded."""

    GROWING = "growing"
    ALWAYS = "always"
    NEVER = "never"


class ResourceKind(StrEnum):
    """Kinds of resources."""

    DESCRIPTORS = "descriptors"
    THREADS = "threads"


class ResourceShare(Struct, frozen=True):
    """What this share (0 to 1) of the resources that came since the attach are, in words."""

    what: str
    share: float


class ResourceUse(Struct, frozen=True):
    """The number of resources of a process, and whether it keeps growing, like a verdict on a call site.

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
    """A call site that opens file descriptors, and how many of these are still open (`open_count`).

    `opened_count` includes closed ones; both count from the start of the recording. `site` is the fingerprint
    of the stack. `growth_per_min` is 0 unless they grow permanently. `shares` are filled for the sites with
    the most, the largest share first. `called_by` is as in SiteReport.
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
    record. `other_count` came since, in a way that is not recorded; of these `other_growth_per_min` is 0
    unless they grow permanently, `other_shares` are their kinds, the largest share first, and `other_reason`
    describes them in words, "" if there are none.
    """

    open_count: int
    recorded_count: int
    earlier_count: int
    other_count: int
    other_growth_per_min: float
    other_reason: str
    other_shares: tuple[ResourceShare, ...] = ()
