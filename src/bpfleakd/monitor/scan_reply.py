"""What crosses between the daemon and the child process that scans: a request, and sums by call site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bpfleakd.analysis.reachability import KINDS
from bpfleakd.model.scan import Reachability, ScanCaveat, ScanMethod
from bpfleakd.table.blocks import BlockSelection

__all__ = ["ScanReply", "ScanRequest", "SiteSums", "reply_of"]


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A process, the descriptor of its live table, and how it is to be scanned.

    `allocator_paths` are the files that its allocators are in. At most `limit` lost blocks are listed.
    """

    pid: int
    start_ticks: int
    live_fd: int
    older_than_s: float
    stop: bool
    stop_limit_s: float
    allocator_paths: list[str]
    limit: int


@dataclass(frozen=True, slots=True)
class SiteSums:
    """Bytes and blocks of one site by kind, in the order of analysis.reachability.KINDS.

    `blocks` are (address, size, born_ns, tid, kind) of those listed, oldest first.
    """

    kind: int
    stack_id: int
    size_bytes: list[int]
    counts: list[int]
    blocks: list[tuple[int, int, int, int, int]]


@dataclass(frozen=True, slots=True)
class ScanReply:
    """The sums of all sites that have blocks of that age, and how the scan went."""

    now_ns: int
    method: str
    caveats: list[str]
    stopped_s: float
    took_s: float
    read_bytes: int
    young_bytes: int
    young_count: int
    sites: list[SiteSums]


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
    )


def _sites(
    addresses: NDArray[np.uint64], blocks: NDArray[np.void], kinds: NDArray[np.uint8], limit: int
) -> list[SiteSums]:
    keys = np.empty(len(blocks), [("kind", "u4"), ("stack_id", "u8")])
    keys["kind"], keys["stack_id"] = blocks["kind"], blocks["stack_id"]
    sites, numbers = np.unique(keys, return_inverse=True)
    shape = len(sites), len(KINDS)
    places = numbers * len(KINDS) + kinds
    counts = np.bincount(places, minlength=shape[0] * shape[1]).reshape(shape)
    size_bytes = np.zeros(shape, np.uint64)
    np.add.at(size_bytes.reshape(-1), places, blocks["size"])
    listed = _listed(addresses, blocks, kinds, limit)
    return [
        SiteSums(
            kind, stack_id, size_bytes[row].tolist(), counts[row].tolist(), listed.get((kind, stack_id), [])
        )
        for row, (kind, stack_id) in enumerate(sites.tolist())
    ]


def _listed(
    addresses: NDArray[np.uint64], blocks: NDArray[np.void], kinds: NDArray[np.uint8], limit: int
) -> dict[tuple[int, int], list[tuple[int, int, int, int, int]]]:
    """Lost blocks by site, as many as are to be listed."""
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
