"""Outstanding blocks."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from bpfleakd.model.code.stack import Frame, StackEnd
from bpfleakd.model.process import ProcessSummary
from bpfleakd.model.report import BlockType, SuppressedSites
from bpfleakd.model.site import AllocationKind


class BlockReport(Struct, frozen=True):
    """One outstanding block, or the rest of one mapping; `comm` is the name of the thread `tid`.

    A sampled block represents `weight` similar blocks: 1 over the probability of recording it.
    """

    address: int
    size_bytes: int
    age_s: float
    tid: int
    comm: str
    weight: float = 1.0


class SiteBlocks(Struct, frozen=True):
    """The outstanding blocks of one call site, oldest first, and their sums.

    `left_out_count` more are in the sums, but not in the list. `caller` is the function responsible for them:
    the blamed frame, or a caller of it if its other callers free their blocks. `types` are as in SiteReport.
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
    """Outstanding blocks at least `older_than_s` old, by site, the largest first.

    The sums are over all of them; `left_out_sites` have no block in the list, and `left_out_count` blocks are
    not listed. Blocks that are `suppressed`, of any age, are in none of these.
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
