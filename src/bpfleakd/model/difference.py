"""Two states of a process compared."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from bpfleakd.model.code.stack import Frame, StackEnd
from bpfleakd.model.site import AllocationKind

__all__ = ["ComparedState", "DiffReport", "SiteChange", "SiteDifference"]


class SiteChange(StrEnum):
    """What became of a call site between two reports."""

    NEW = "new"
    GROWN = "grown"
    SHRUNK = "shrunk"
    GONE = "gone"


class SiteDifference(Struct, frozen=True):
    """One call site that changed: what was live before and after. The rest is of the later report.

    `before_site` is its fingerprint in the earlier one, another one if it was matched by the names of its
    functions; None if it was not there.
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
    """One side of a comparison: a process as it was, `source` says when ("10m ago"), or where that was saved.

    What is kept of the past is the least of each call site within `resolution_s`; 0: figures of one moment.
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
    """Two states compared: `sites` that changed, what gained most first.

    `left_out_sites` more changed by less than those that are listed, or are suppressed. Call sites in files
    that were `built_anew` in between are matched by the names of functions.
    """

    before: ComparedState
    after: ComparedState
    unchanged_count: int
    left_out_sites: int
    sites: tuple[SiteDifference, ...]
    built_anew: tuple[str, ...] = ()
