"""Survivors, against counting blocks one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.kernel.abi import LIVE_BLOCK
from bpfleakd.table.survivors import count_survivors

BLOCK = st.tuples(
    st.integers(0, 1 << 30),
    st.integers(0, 60),
    st.sampled_from([0, 7, (1 << 64) - 1]),
    st.integers(0, 3),
    st.integers(0, 1),
)


def records(blocks: list[tuple[int, ...]]) -> np.ndarray:
    """Blocks that stand for themselves."""
    return np.array([(size, max(size, 1), *rest) for size, *rest in blocks], LIVE_BLOCK)


@given(batches=st.lists(st.lists(BLOCK, max_size=30), max_size=4))
def test_each_block_is_in_the_stretch_of_its_birth(batches: list[list[tuple[int, ...]]]) -> None:
    """By site, in whatever batches they come; also those from before the first and after the last edge."""
    edges_ns = np.array([10, 20, 35, 50])
    survivors = count_survivors((records(batch) for batch in batches), edges_ns)
    counts: Counter[tuple[int, int, int]] = Counter()
    sizes: Counter[tuple[int, int, int]] = Counter()
    for size, born_ns, stack_id, _tid, kind in (block for batch in batches for block in batch):
        cell = kind, stack_id, 0 if born_ns <= 20 else 1 if born_ns <= 35 else 2
        counts[cell] += 1
        sizes[cell] += size
    sites = survivors.sites()
    assert sites == sorted({cell[:2] for cell in counts})
    columns = np.arange(len(sites))[::-1].copy()
    live_count, live_bytes = survivors.matrices(columns, len(sites))
    for (kind, stack_id), column in zip(sites, columns.tolist(), strict=True):
        for stretch in range(3):
            cell = kind, stack_id, stretch
            assert live_count[stretch, column] == counts[cell]
            assert live_bytes[stretch, column] == sizes[cell]


def test_sites_can_be_left_out() -> None:
    """Those with a negative column appear in no other."""
    blocks = records([(8, 1, 1, 0, 0), (16, 1, 2, 0, 0), (32, 1, 2, 0, 0)])
    survivors = count_survivors([blocks], np.array([0, 5]))
    live_count, live_bytes = survivors.matrices(np.array([-1, 0]), 1)
    assert (live_count.tolist(), live_bytes.tolist()) == ([[2.0]], [[48.0]])


def test_a_sampled_block_counts_for_those_it_stands_for() -> None:
    """One of 8 bytes with a weight of 80 bytes is ten blocks."""
    survivors = count_survivors([np.array([(8, 80, 1, 1, 0, 0)], LIVE_BLOCK)], np.array([0, 5]))
    live_count, live_bytes = survivors.matrices(np.array([0]), 1)
    assert (live_count.tolist(), live_bytes.tolist()) == ([[10.0]], [[80.0]])


def test_no_blocks() -> None:
    """Nothing survives of nothing."""
    survivors = count_survivors([], np.array([0, 5, 6]))
    assert survivors.sites() == []
    assert survivors.matrices(np.zeros(0, np.intp), 2)[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]
