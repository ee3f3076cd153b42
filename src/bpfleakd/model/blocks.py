"""Outstanding blocks, one by one."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from bpfleakd.model.code.stack import Frame, StackEnd
from bpfleakd.model.process import ProcessSummary
from bpfleakd.model.report import BlockType, SuppressedSites
from bpfleakd.model.site import AllocationKind

__all__ = ["BlockReport", "BlocksReport", "SiteBlocks"]


class BlockReport(Struct, frozen=True):
    """One outstanding block, or what is left of one mapping; `comm` is the name of the thread `tid`.

    Where blocks are sampled it stands for `weight` of them, all like it: 1 over the probability that it was
    recorded.
    """

    address: int
    size_bytes: int
    age_s: float
    tid: int
    comm: str
    weight: float = 1.0


class SiteBlocks(Struct, frozen=True):
    """The outstanding blocks of one call site, oldest first, and how much they are together.

    `left_out_count` more are in the sums, but not in the list. `caller` is the function responsible for them:
    the blamed frame, or a caller of it if other callers free what they get. `types` are as in SiteReport.
    """

    site: str
    kind: AllocationKind
    caller: Frame | None
    live_bytes: int
    live_count: int
    blocks: tuple[BlockReport, ...]
    left_out_count: int
    stack: tuple[Frame, ...]
    truncated: StackEnd | None
    types: tuple[BlockType, ...] = ()


class BlocksReport(Struct, frozen=True):
    """The answer to "which blocks": those at least `older_than_s` old, by site, the largest first.

    The sums are over all of them; `left_out_sites` have no block in the list, `left_out_count` is of blocks.
    What is `suppressed`, of any age, is in none of these.
    """

    process: ProcessSummary
    older_than_s: float
    live_bytes: int
    live_count: int
    sites: tuple[SiteBlocks, ...]
    left_out_sites: int
    left_out_count: int
    losses: dict[str, int]
    suppressed: dict[str, SuppressedSites] = msgspec.field(default_factory=dict)
