"""Mappings in the form of blocks, to count and list both together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bpfleakd.kernel.abi import KINDS, LIVE_BLOCK
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.table.regions import LiveRegion

# The numbers of the heap's kinds are those of the live table.
BLOCK_KINDS = (*KINDS, *(kind for kind in AllocationKind if kind not in KINDS))


def regions_as_blocks(
    regions: Iterable[tuple[SiteKey, LiveRegion]],
) -> tuple[NDArray[np.uint64], NDArray[np.void]]:
    """Their addresses, and LIVE_BLOCK records of them with kinds by their place in BLOCK_KINDS."""
    regions = list(regions)
    addresses = np.array([region.start for _key, region in regions], np.uint64)
    blocks = [
        (
            # Joined regions: their mean size, which stands for all.
            region.length_bytes // region.count,
            region.length_bytes,
            region.born_ns,
            key.stack_id,
            region.tid,
            BLOCK_KINDS.index(key.kind),
        )
        for key, region in regions
    ]
    return addresses, np.array(blocks, LIVE_BLOCK)
