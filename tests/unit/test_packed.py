"""Packing and unpacking gives an equal value."""

from __future__ import annotations

import msgspec

from bpfleakd.model.blocks import BlockReport, SiteBlocks
from bpfleakd.model.packed import Packed
from bpfleakd.model.site import AllocationKind


def test_a_packed_answer_is_equal_and_small() -> None:
    """A thousand blocks of a call site."""
    blocks = tuple(BlockReport((1 << 47) + 64 * n, 48, 3.25, 7, "wörker") for n in range(1_000))
    site = SiteBlocks("a" * 16, AllocationKind.HEAP, None, 48_000, 1_000, blocks, 0, (), None)
    packed = Packed(site)
    assert packed.unpacked() == site
    assert packed.size_bytes < len(msgspec.msgpack.encode(site)) / 4
