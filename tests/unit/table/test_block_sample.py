"""A sample of blocks: as many of each site, the same whichever order they come in, and a fair one."""

from __future__ import annotations

import numpy as np

from bpfleakd.kernel.abi import LIVE_BLOCK
from bpfleakd.table.block_sample import BlockSample


def batch(stack_ids: list[int], kind: int = 0) -> np.ndarray:
    rows = np.zeros(len(stack_ids), LIVE_BLOCK)
    rows["stack_id"], rows["kind"], rows["size"], rows["weight"] = stack_ids, kind, 32, 64
    return rows


def addresses_of(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint64) * np.uint64(48) + np.uint64(0x55550000)


def test_as_many_of_each_site_and_no_others():
    """The one with few has all of them; other sites and other kinds of memory are left out."""
    sample = BlockSample(0, [1, 2], 5)
    sample.add(addresses_of(103), batch([1] * 100 + [2] * 3))
    sample.add(addresses_of(20, 1000), batch([3] * 20))
    sample.add(addresses_of(20, 2000), batch([1] * 20, kind=1))

    stacks, counts = np.unique(sample.blocks["stack_id"], return_counts=True)

    assert (stacks.tolist(), counts.tolist()) == ([1, 2], [5, 3])
    assert sample.blocks["weight"].tolist() == [2.0] * 8
    assert sample.blocks["address"].max() < addresses_of(1, 1000)[0]


def test_batches_make_no_difference():
    """The sample depends on the blocks, not on their order."""
    addresses, blocks = addresses_of(1000), batch([7] * 1000)
    whole, cut = BlockSample(0, [7], 23), BlockSample(0, [7], 23)
    whole.add(addresses, blocks)
    order = np.random.default_rng(1).permutation(1000)
    for part in np.array_split(order, 11):
        cut.add(addresses[part], blocks[part])

    assert cut.blocks["address"].tolist() == whole.blocks["address"].tolist()


def test_the_sample_is_fair_where_blocks_alternate():
    """Every second block is another class, at addresses that are as regular: the sample has half of each."""
    sample = BlockSample(0, [7], 400)
    addresses = addresses_of(10_000)
    sample.add(addresses, batch([7] * 10_000))

    odd = np.isin(sample.blocks["address"], addresses[1::2]).sum()

    assert abs(odd - 200) < 50  # five standard deviations
