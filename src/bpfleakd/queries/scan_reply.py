"""The messages between the daemon and the child process that scans: a request, and sums by call site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.model.scan import Reachability, ScanCaveat, ScanMethod
from bpfleakd.reachability.classification import KINDS
from bpfleakd.table.blocks import BlockSelection


class ScanRequest(Struct, frozen=True):
    """A process, the descriptor of its live table, and how to scan it.

    `allocator_paths` are the files with its allocators. At most `limit` lost blocks are listed. `heap` has
    the ranges whose blocks are all in the table, and `threads_fd` shows whether a thread is moving one.
    """

    pid: int
    start_ticks: int
    live_fd: int
    older_than_s: float
    stop: bool
    stop_limit_s: float
    allocator_paths: list[str]
    limit: int
    heap: Sequence[tuple[int, int]] = ()
    threads_fd: int = -1


class SiteSums(Struct, frozen=True):
    """Bytes and blocks of one site by kind, in the order of reachability.KINDS.

    `blocks` are the listed ones as (address, size, born_ns, tid, kind), oldest first.
    """

    kind: int
    stack_id: int
    size_bytes: list[int]
    counts: list[int]
    blocks: list[tuple[int, int, int, int, int]]


class ScanReply(Struct, frozen=True):
    """The sums of all sites with blocks of the requested age, and the conditions of the scan.

    In the ranges `dismissed`, words outside of blocks did not count as pointers; `heap_bytes` is the size of
    the memory read in that way.
    """

    now_ns: int
    method: str
    caveats: list[str]
    stopped_s: float
    took_s: float
    read_bytes: int
    young_bytes: int
    young_count: int
    sites: list[SiteSums]
    dismissed: list[tuple[int, int]]
    heap_bytes: int


def reply_of(
    request: ScanRequest,
    addresses: NDArray[np.uint64],
    blocks: NDArray[np.void],
    kinds: NDArray[np.uint8],
    *,
    now_ns: int,
    method: ScanMethod,
    caveats: list[ScanCaveat],
    stopped_s: float,
    took_s: float,
    read_bytes: int,
    dismissed: Sequence[tuple[int, int]] = (),
    heap_bytes: int = 0,
) -> ScanReply:
    """Sum up LIVE_BLOCK records and their kinds, by site."""
    old = blocks["born_ns"].astype(np.int64) <= now_ns - round(request.older_than_s * 1e9)
    young = blocks["size"][~old]
    addresses, blocks, kinds = addresses[old], blocks[old], kinds[old]
    return ScanReply(
        now_ns=now_ns,
        method=method,
        caveats=list(caveats),
        stopped_s=stopped_s,
        took_s=took_s,
        read_bytes=read_bytes,
        young_bytes=int(young.sum()),
        young_count=len(young),
        sites=_sites(addresses, blocks, kinds, request.limit),
        dismissed=list(dismissed),
        heap_bytes=heap_bytes,
    )


def _sites(
    addresses: NDArray[np.uint64], blocks: NDArray[np.void], kinds: NDArray[np.uint8], limit: int
) -> list[SiteSums]:
    # Sorting numbers is twenty times as fast as sorting pairs of numbers.
    stack_ids, of_stack = np.unique(blocks["stack_id"], return_inverse=True)
    kind_count = int(blocks["kind"].max(initial=0)) + 1
    sites = of_stack * kind_count + blocks["kind"]
    shape = len(stack_ids) * kind_count, len(KINDS)
    places = sites * len(KINDS) + kinds
    counts = np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape)
    # A sum of bytes is exact in a float, below 2^53.
    size_bytes = np.bincount(places, blocks["size"], shape[0] * shape[1]).astype(np.int64).reshape(shape)
    listed = _listed(addresses, blocks, kinds, limit)
    sums = []
    for row in np.flatnonzero(counts.sum(axis=1)).tolist():
        stack, kind = divmod(row, kind_count)
        key = kind, int(stack_ids[stack])
        sums.append(SiteSums(*key, size_bytes[row].tolist(), counts[row].tolist(), listed.get(key, [])))
    return sums


def _listed(
    addresses: NDArray[np.uint64], blocks: NDArray[np.void], kinds: NDArray[np.uint8], limit: int
) -> dict[tuple[int, int], list[tuple[int, int, int, int, int]]]:
    """Lost blocks by site, up to the limit of the list."""
    lost = kinds != KINDS.index(Reachability.STILL_REACHABLE)
    selection = BlockSelection(limit)
    selection.add(addresses[lost], blocks[lost])
    listed = {}
    for site in selection.sites():
        rows = site.listed
        of_rows = kinds[np.searchsorted(addresses, rows["address"])]
        columns = (rows["address"], rows["size"], rows["born_ns"], rows["tid"], of_rows)
        listed[site.kind, site.stack_id] = list(zip(*(column.tolist() for column in columns), strict=True))
    return listed
