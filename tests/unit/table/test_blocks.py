"""The selection of blocks, against one that has them all at once."""

from __future__ import annotations

from collections import defaultdict
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.kernel.abi import LIVE_BLOCK
from bpfleakd.table import blocks as module
from bpfleakd.table.blocks import BlockSelection, SelectedSite, even_share

# size, born_ns, stack_id, tid, kind
Block = tuple[int, int, int, int, int]

BLOCKS = st.tuples(
    st.integers(0, 1 << 40),
    st.integers(0, 50),
    # Few different ones, at both ends of 64 bits.
    st.sampled_from([0, 1, 2, (1 << 64) - 1, 1 << 63]),
    st.integers(1, 3),
    st.integers(0, 1),
)


def selected(batches: list[list[Block]], limit: int, **options: object) -> list[SelectedSite]:
    """Addresses are the numbers of the blocks."""
    selection = BlockSelection(limit, **options)  # type: ignore[arg-type]
    array = np.zeros(max(map(len, batches), default=0), LIVE_BLOCK)
    first = 0
    for batch in batches:
        # As the reader of the kernel's table does: one array for all.
        array[: len(batch)] = [(size, max(size, 1), *rest) for size, *rest in batch]
        addresses = np.arange(first, first + len(batch), dtype=np.uint64)
        selection.add(addresses, array[: len(batch)])
        first += len(batch)
    return selection.sites()


def by_site(blocks: list[Block], born_until_ns: int | None) -> dict[tuple[int, int], list[tuple[int, Block]]]:
    sites = defaultdict(list)
    for address, block in enumerate(blocks):
        if born_until_ns is None or block[1] <= born_until_ns:
            sites[block[4], block[2]].append((address, block))
    return sites


@given(
    batches=st.lists(st.lists(BLOCKS, max_size=20), max_size=6),
    limit=st.integers(1, 60),
    born_until_ns=st.none() | st.integers(0, 50),
    waiting_max=st.sampled_from([0, 7, 1 << 17]),
)
def test_any_blocks(
    batches: list[list[Block]], limit: int, born_until_ns: int | None, waiting_max: int
) -> None:
    """Sums cover all; the list is full or complete, divided evenly, with the oldest of each site."""
    with mock.patch.object(module, "_WAITING_MAX", waiting_max):
        sites = selected(batches, limit, born_until_ns=born_until_ns)

    expected = by_site([block for batch in batches for block in batch], born_until_ns)
    assert {(site.kind, site.stack_id) for site in sites} == set(expected)
    total = sum(map(len, expected.values()))
    assert sum(len(site.listed) for site in sites) == min(limit, total)
    for site in sites:
        blocks = expected[site.kind, site.stack_id]
        assert site.live_count == len(blocks)
        assert site.live_bytes == sum(block[0] for _address, block in blocks)
        listed = site.listed.tolist()
        for address, size, _weight, born_ns, stack_id, tid, kind in listed:
            assert (address, (size, born_ns, stack_id, tid, kind)) in blocks
        assert len({row[0] for row in listed}) == len(listed)
        oldest = sorted(block[1] for _address, block in blocks)[: len(listed)]
        assert [row[3] for row in listed] == oldest
    shares = [len(site.listed) for site in sites if len(site.listed) < site.live_count]
    assert not shares or max(len(site.listed) for site in sites) <= min(shares) + 1
    assert [site.live_bytes for site in sites] == sorted((site.live_bytes for site in sites), reverse=True)


def test_small_sites_are_listed_whole() -> None:
    """However many blocks the others have."""
    large = [(1, n, 1, 7, 0) for n in range(10_000)]
    small = [(1, n, 2, 7, 0) for n in range(23)]
    sites = {site.stack_id: len(site.listed) for site in selected([large, small, large], 1_000)}
    assert sites == {1: 977, 2: 23}


def test_more_sites_than_room() -> None:
    """The largest have one block each."""
    blocks = [(n, 5, n, 7, 0) for n in range(1, 101)] * 2
    sites = selected([blocks], 10)
    assert len(sites) == 100
    assert {site.stack_id for site in sites if len(site.listed)} == set(range(91, 101))
    assert sum(len(site.listed) for site in sites) == 10


def test_only_some_stacks() -> None:
    """Other stacks are not counted."""
    blocks = [(1, 5, stack_id, 7, 0) for stack_id in (1, 2, 3, 2)]
    (site,) = selected([blocks], 10, stack_ids=np.array([2], np.uint64))
    assert (site.stack_id, site.live_count) == (2, 2)
    assert selected([blocks], 10, stack_ids=np.array([], np.uint64)) == []


def test_nothing_at_all() -> None:
    """No batch, or empty ones."""
    assert selected([], 10) == selected([[]], 10) == []


@pytest.mark.parametrize(
    ("counts", "limit", "share"),
    [
        ([], 10, 10),
        ([3], 10, 10),
        ([30], 10, 10),
        ([5, 20, 1_000_000], 1_000, 975),
        ([7, 7, 7], 10, 3),
        ([1] * 100, 10, 0),
        ([2, 2], 4, 4),
    ],
)
def test_an_even_share(counts: list[int], limit: int, share: int) -> None:
    """So many of each, or all that it has, and one more of each would be too many."""
    assert even_share(np.array(counts, np.uint64), limit) == share
    assert sum(min(count, share) for count in counts) <= limit
