"""The blocks that pin freed memory, against a byte-by-byte count."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.analysis.pinned_memory import PinnedPages, Pinning, pinned_pages, pinning_sites
from bpfleakd.kernel.abi import LIVE_BLOCK

PAGE = 4096
START = 0x5555_0000_0000


def live(*blocks: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of (place, size, stack)."""
    rows = np.zeros(len(blocks), LIVE_BLOCK)
    rows["size"], rows["stack_id"] = [b[1] for b in blocks], [b[2] for b in blocks]
    return np.array([START + b[0] for b in blocks], np.uint64), rows


@given(
    gaps=st.lists(st.tuples(st.integers(0, 6_000), st.integers(1, 9_000)), max_size=12),
    present=st.lists(st.booleans(), min_size=1, max_size=20),
)
def test_free_bytes_of_each_page(gaps, present) -> None:
    """For pages that are resident and not completely free."""
    chunks, at = [], 0
    for gap, size in gaps:
        chunks.append((START + at + gap, size))
        at += gap + size
    free = np.zeros(len(present) * PAGE, bool)
    for first, size in chunks:
        free[first - START : first - START + size] = True
    counted = free.reshape(-1, PAGE).sum(axis=1)
    expected = np.where(np.array(present) & (counted < PAGE), counted, 0)

    table = np.array(chunks, np.uint64).reshape(-1, 2)
    assert pinned_pages(START, np.array(present), table).free_bytes.tolist() == expected.tolist()


def test_a_page_is_shared_out_between_its_blocks():
    """Also with a block that ends in it; a block that fills whole pages pins nothing there."""
    pages = PinnedPages(START, np.array([1000, 0, 600, 300]))
    batch = live((0, 16, 7), (100, 16, 8), (PAGE, PAGE, 8), (2 * PAGE, PAGE + 8, 9), (50 * PAGE, 16, 9))
    expected = [Pinning(9, 900, 1), Pinning(7, 500, 1), Pinning(8, 500, 1)]
    assert pinning_sites([pages], [batch]) == expected
    assert pinning_sites([pages], [live((0, 16, 7)), live((100, 16, 8))])[0] == Pinning(7, 500, 1)


def test_nobody_is_charged_for_what_was_there_before():
    """Pages without a recorded block, areas without pinned pages, no blocks at all."""
    pages = [PinnedPages(START, np.array([0, 0])), PinnedPages(START + 9 * PAGE, np.array([500]))]
    assert pinning_sites(pages, [live((0, 16, 7))]) == []
    assert pinning_sites(pages, []) == []
    assert pinning_sites([], [live((0, 16, 7))]) == []


@given(st.lists(st.tuples(st.integers(0, 20 * PAGE), st.integers(0, 9_000), st.integers(1, 4)), max_size=40))
def test_no_more_is_charged_than_is_held(blocks):
    """Over areas apart from each other; every page with a block in it is charged wholly."""
    held = np.arange(1, 9, dtype=np.int64) * 100
    pages = [PinnedPages(START + 10 * PAGE, held[4:]), PinnedPages(START, held[:4])]
    found = pinning_sites(pages, [live(*blocks)] if blocks else [])
    touched = Counter()
    for at, size, _stack in blocks:
        for end in (at, at + max(size, 1) - 1):
            page = end // PAGE
            touched[page] += 1
    expected = sum(int(held[page]) for page in range(4) if touched[page])
    expected += sum(int(held[page - 6]) for page in range(10, 14) if touched[page])
    assert abs(sum(one.bytes for one in found) - expected) <= len(found)
