"""The saved input of verdicts."""

from __future__ import annotations

from msgspec import Struct

from bpfleakd.model.limit import MemoryLimit
from bpfleakd.model.site import AllocationKind


class StoredSite(Struct, frozen=True):
    """One call site: for each bin, the least live figures, the births, and the survivors of these."""

    site: str
    kind: AllocationKind
    function: str | None
    module: str | None
    live_bytes: int
    live_count: int
    low_bytes: tuple[float, ...]
    low_count: tuple[float, ...]
    born_count: tuple[float, ...]
    survivors_count: tuple[float, ...]
    survivors_bytes: tuple[float, ...]
    weight: float = 1.0
    suppressed: bool = False


class StoredHistory(Struct, frozen=True):
    """The input of the verdicts on a process, for use elsewhere.

    Bins of time end at `ends_s`, in seconds since the attach; each begins where the one before ends.
    `replaced_count` to `lost_blocks` and the variances are as in verdicts.site_verdict.Context. Anonymous
    memory was at least `memory_bytes` in bins whose first readings were at `memory_s`. For `unread_s` of the
    time there was no daemon; in the last `full_s` the table of `full_of` was full.
    `intervals_bytes` are the sampling intervals by bin, where they changed (0: every block was recorded).
    `allocated_count` are the blocks that the whole process had allocated by the end of each bin, `firsts_s`
    the times of the first readings in the bins.
    Figures of sites of kind GO_HEAP are those at `collected_s`; None if there are no such sites.
    """

    version: int
    comm: str
    leak_after_s: float
    replaced_count: float
    lost_frees: int
    lost_blocks: int
    ends_s: tuple[float, ...]
    memory_s: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    limits: tuple[MemoryLimit, ...]
    sites: tuple[StoredSite, ...]
    unread_s: float = 0.0
    intervals_bytes: tuple[float, ...] = ()
    collected_s: tuple[float, ...] | None = None
    growth_variance: float = 0.0
    churn_variance: float = 0.0
    full_s: float = 0.0
    full_of: str = "live blocks"
    firsts_s: tuple[float, ...] = ()
    allocated_count: tuple[float, ...] = ()
