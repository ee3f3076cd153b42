"""A census of the outstanding blocks: figures that the site counters do not contain.

The blocks of a process come in batches of arrays (one LIVE_BLOCK record each: size, weight, born_ns,
stack_id, tid, kind) and are summed by site and thread, so a million blocks need no more memory than one
batch. A sampled block counts for all those that it represents.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
from msgspec import Struct

from bpfleakd.table.estimates import block_weights, estimated_bytes


class SiteCensus(Struct):
    """The outstanding blocks of one site: the birth of the oldest, and live bytes and blocks by tid.

    Sampled blocks may represent fractions of blocks.
    """

    oldest_born_ns: int
    live_bytes_by_tid: dict[int, int] = msgspec.field(default_factory=dict)
    live_count_by_tid: dict[int, float] = msgspec.field(default_factory=dict)


def take_census(batches: Iterable[np.ndarray]) -> dict[tuple[int, int], SiteCensus]:
    """Sum up batches of LIVE_BLOCK records by site (kind number, stack id)."""
    sites: dict[tuple[int, int], SiteCensus] = {}
    for blocks in batches:
        if not len(blocks):
            continue
        order = np.lexsort((blocks["tid"], blocks["stack_id"], blocks["kind"]))
        blocks = blocks[order]
        groups = blocks[["kind", "stack_id", "tid"]]
        starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
        live_bytes = np.add.reduceat(estimated_bytes(blocks), starts)
        live_count = np.add.reduceat(block_weights(blocks), starts)
        oldest_ns = np.minimum.reduceat(blocks["born_ns"], starts)
        for (kind, stack_id, tid), size, count, born_ns in zip(
            groups[starts].tolist(), live_bytes.tolist(), live_count.tolist(), oldest_ns.tolist(), strict=True
        ):
            site = sites.setdefault((kind, stack_id), SiteCensus(born_ns))
            site.oldest_born_ns = min(site.oldest_born_ns, born_ns)
            site.live_bytes_by_tid[tid] = site.live_bytes_by_tid.get(tid, 0) + size
            site.live_count_by_tid[tid] = site.live_count_by_tid.get(tid, 0) + count
    return sites
