"""A sample of the outstanding blocks of some call sites, equally large for each, in any order of input.

For each site, it keeps the blocks whose addresses have the smallest hashes (a bottom-k sample). That is as
good as a random sample, needs one pass and little memory, and the next sample has the same blocks if they are
still live.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from bpfleakd.table.estimates import block_weights

SAMPLED_BLOCK = np.dtype(
    [("hash", "u8"), ("stack_id", "u8"), ("address", "u8"), ("size", "u8"), ("weight", "f8")]
)


class BlockSample:
    """Keeps at most `per_site` blocks of each of the stacks, all of allocation kind number `kind`."""

    def __init__(self, kind: int, stack_ids: Collection[int], per_site: int) -> None:
        self._kind = kind
        self._stack_ids = np.fromiter(stack_ids, np.uint64)
        self._per_site = per_site
        self._rows = np.empty(0, SAMPLED_BLOCK)

    def add(self, addresses: NDArray[np.uint64], blocks: NDArray[np.void]) -> None:
        """Add a batch: LIVE_BLOCK records, and their addresses."""
        wanted = np.isin(blocks["stack_id"], self._stack_ids) & (blocks["kind"] == self._kind)
        if not wanted.any():
            return
        chosen = blocks[wanted]
        rows = np.empty(len(chosen), SAMPLED_BLOCK)
        rows["address"] = addresses[wanted]
        rows["hash"] = _mixed(rows["address"])
        rows["stack_id"], rows["size"] = chosen["stack_id"], chosen["size"]
        rows["weight"] = block_weights(chosen)
        rows = np.concatenate([self._rows, rows])
        rows = rows[np.lexsort((rows["hash"], rows["stack_id"]))]
        first = np.searchsorted(rows["stack_id"], rows["stack_id"])
        self._rows = rows[np.arange(len(rows)) - first < self._per_site]

    @property
    def blocks(self) -> NDArray[np.void]:
        """The sample so far (SAMPLED_BLOCK), by stack; `weight` is how many blocks each represents."""
        return self._rows


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): each bit depends on all."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
