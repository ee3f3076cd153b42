"""The census, against a sum over blocks one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.kernel.abi import LIVE_BLOCK
from bpfleakd.table.census import SiteCensus, take_census

Block = tuple[int, int, int, int, int]

BLOCKS = st.tuples(
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 62),
    # Few different ones, at both ends of 64 bits.
    st.sampled_from([0, 1, 2, (1 << 64) - 1, 1 << 63]),
    st.sampled_from([0, 7, 23, (1 << 32) - 1]),
    st.integers(0, 1),
)


def batch(blocks: list[Block]) -> np.ndarray:
    return np.array([(size, max(size, 1), *rest) for size, *rest in blocks], LIVE_BLOCK)


def counted(blocks: list[Block]) -> dict[tuple[int, int], SiteCensus]:
    sites: dict[tuple[int, int], SiteCensus] = {}
    for size, born_ns, stack_id, tid, kind in blocks:
        site = sites.setdefault((kind, stack_id), SiteCensus(born_ns))
        site.oldest_born_ns = min(site.oldest_born_ns, born_ns)
        site.live_bytes_by_tid[tid] = site.live_bytes_by_tid.get(tid, 0) + size
        site.live_count_by_tid[tid] = site.live_count_by_tid.get(tid, 0) + 1
    return sites


@given(batches=st.lists(st.lists(BLOCKS, max_size=30), max_size=4))
def test_sums_are_those_of_the_blocks(batches: list[list[Block]]) -> None:
    """Cut into batches in any way, also empty ones: sizes add up by site and thread, the oldest is found."""
    everything = [block for blocks in batches for block in blocks]
    assert take_census(map(batch, batches)) == counted(everything)


def test_no_blocks_at_all() -> None:
    """A process without a block has a census without sites."""
    assert take_census([]) == {}
    assert take_census([batch([])]) == {}


def test_batches_may_be_overwritten() -> None:
    """The reader of the kernel's table uses one array for all batches: nothing of it is kept."""
    array = batch([(0, 0, 0, 0, 0)] * 2)

    def batches():
        for n in range(1, 4):
            array[:] = [(n, n, n, 1, n, 0), (10 * n, 10 * n, 5, 2, 7, 0)]
            yield array

    census = take_census(batches())
    assert census[0, 1] == SiteCensus(1, {1: 1, 2: 2, 3: 3}, {1: 1, 2: 1, 3: 1})
    assert census[0, 2] == SiteCensus(5, {7: 60}, {7: 3})


def test_sums_beyond_32_bits() -> None:
    """A site of many large blocks does not wrap around."""
    census = take_census([batch([(1 << 40, 1, 1, 1, 0)] * 100)])
    assert census[0, 1].live_bytes_by_tid == {1: 100 << 40}


def test_the_batch_is_left_as_it_was() -> None:
    """Sorting is done on a copy."""
    blocks = batch([(1, 9, 2, 2, 0), (2, 8, 1, 1, 0)])
    before = blocks.copy()
    take_census([blocks])
    assert (blocks == before).all()
