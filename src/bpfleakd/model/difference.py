"""The comparison of two states of a process."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from bpfleakd.model.code.stack import Frame, StackEnd
from bpfleakd.model.site import AllocationKind


class SiteChange(StrEnum):
    """How a call site changed between two reports."""

    NEW = "new"
    GROWN = "grown"
    SHRUNK = "shrunk"
    GONE = "gone"


class SiteDifference(Struct, frozen=True):
    """One call site that changed, with its live figures before and after. The rest is of the later report.

    `before_site` is its fingerprint in the earlier report, a different one if it was matched by the names of
    its functions; None if it was not in that report.
    """

    site: str
    kind: AllocationKind
    change: SiteChange
    function: str | None
    module: str | None
    location: str | None
    before_bytes: int
    before_count: int
    after_bytes: int
    after_count: int
    stack: tuple[Frame, ...]
    truncated: StackEnd | None
    before_site: str | None = None


class ComparedState(Struct, frozen=True):
    """One side of a comparison. `source` is the time of a process' state ("10m ago"), or where it was saved.

    The stored past has the least figure of each call site within `resolution_s`; 0: figures of one moment.
    `left_out_bytes` are live in the process, but in no call site that is compared.
    """

    source: str
    pid: int
    comm: str
    exe: str
    mode: str
    attached_s: float
    live_bytes: int
    live_count: int
    left_out_bytes: int
    resolution_s: float


class DiffReport(Struct, frozen=True):
    """A comparison of two states: the `sites` that changed; those that gained most come first.

    `left_out_sites` more changed by less than the listed ones, or are suppressed. Call sites in files that
    were `built_anew` in between are matched by the names of functions.
    """

    before: ComparedState
    after: ComparedState
    unchanged_count: int
    left_out_sites: int
    sites: tuple[SiteDifference, ...]
    built_anew: tuple[str, ...] = ()
