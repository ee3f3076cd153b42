"""Kinds of blocks: small hand-made heaps, and any heap against a slow and plain search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.model.scan import Reachability, ReachabilitySums
from bpfleakd.reachability import block_graph, pointers
from bpfleakd.reachability.classification import KINDS, classify, is_reachable
from bpfleakd.reachability.pointers import BlockTable, HeapRanges, PointerScan

DIRECT, INDIRECT = Reachability.DIRECTLY_LOST, Reachability.INDIRECTLY_LOST
POSSIBLE, REACHABLE = Reachability.POSSIBLY_LOST, Reachability.STILL_REACHABLE

HEAP = 0x7F00_0000_0000
BLOCK_BYTES = 64
SLOT_BYTES = 128
ROOTS = 0x5500_0000_0000


def start_of(block: int) -> int:
    return HEAP + block * SLOT_BYTES


def kinds_of(
    count: int,
    links: list[tuple[int, int, int]],
    roots: list[tuple[int, int]],
    more_roots: set[int] = frozenset(),
) -> list[Reachability]:
    """Blocks 0 to count; links from block to block and roots to blocks, each with an offset in the target."""
    starts = np.array([start_of(block) for block in range(count)], np.uint64)
    scan = PointerScan(BlockTable(starts, np.full(count, BLOCK_BYTES, np.uint64)))
    memory = np.zeros(count * SLOT_BYTES // 8 + 1, np.uint64)
    used = [0] * count
    for source, target, offset in links:
        memory[source * SLOT_BYTES // 8 + used[source]] = start_of(target) + offset
        used[source] += 1
    address, length = np.array([HEAP], np.uint64), np.array([len(memory)])
    scan.add_memory(address, length, memory, allocators=True)
    words = np.array([start_of(target) + offset for target, offset in roots], np.uint64)
    scan.add_memory(np.array([ROOTS], np.uint64), np.array([len(words)]), words, allocators=False)
    marks = np.isin(np.arange(count), list(more_roots))
    return [KINDS[kind] for kind in classify(scan.pointers(), marks)]


def test_nothing_points_to_it() -> None:
    """A block without a pointer is lost, whatever it points to itself."""
    assert kinds_of(1, [(0, 0, 0)], []) == [DIRECT]


def test_a_list_that_lost_its_head() -> None:
    """The head is lost directly, the rest of the list with it."""
    links = [(2, 0, 0), (0, 1, 0)]
    assert kinds_of(3, links, []) == [INDIRECT, INDIRECT, DIRECT]
    assert kinds_of(3, links, [(2, 0)]) == [REACHABLE] * 3


def test_a_circle() -> None:
    """The block with the lowest address stands for it, as in memcheck."""
    assert kinds_of(3, [(0, 2, 0), (2, 1, 0), (1, 0, 0)], []) == [DIRECT, INDIRECT, INDIRECT]


def test_two_circles_of_which_one_leads_to_the_other() -> None:
    """Nobody but the first is to blame, although the other's addresses are lower."""
    circles = [(0, 1, 0), (1, 0, 0), (2, 3, 0), (3, 2, 0)]
    assert kinds_of(4, circles, []) == [DIRECT, INDIRECT, DIRECT, INDIRECT]
    assert kinds_of(4, [*circles, (3, 1, 0)], []) == [INDIRECT, INDIRECT, DIRECT, INDIRECT]


def test_only_an_interior_pointer() -> None:
    """Possibly lost, and so is what hangs on it; a pointer to the start decides."""
    links = [(0, 1, 0)]
    assert kinds_of(2, links, [(0, 8)]) == [POSSIBLE, POSSIBLE]
    assert kinds_of(2, links, [(0, 8), (1, 0)]) == [POSSIBLE, REACHABLE]
    assert kinds_of(2, links, [(0, 8), (0, 0)]) == [REACHABLE, REACHABLE]
    assert kinds_of(2, [(0, 1, 8)], [(0, 0)]) == [REACHABLE, POSSIBLE]


@pytest.mark.parametrize(("offset", "kind"), [(0, REACHABLE), (63, POSSIBLE), (64, DIRECT)])
def test_the_ends_of_a_block(offset: int, kind: Reachability) -> None:
    """The last byte is inside, the one behind it is not."""
    assert kinds_of(1, [], [(0, offset)]) == [kind]


def test_blocks_that_are_taken_for_roots() -> None:
    """They hold the blocks they point to."""
    assert kinds_of(3, [(0, 1, 0)], [], {0}) == [REACHABLE, REACHABLE, DIRECT]


def test_an_empty_block_has_an_address() -> None:
    """As malloc(0) gives: a pointer to it counts, one behind it does not."""
    blocks = BlockTable(np.array([HEAP], np.uint64), np.array([0], np.uint64))
    assert blocks.find(np.array([HEAP - 1, HEAP, HEAP + 1], np.uint64)).tolist() == [-1, 0, -1]


def test_no_blocks_at_all() -> None:
    """Nothing is lost then."""
    assert kinds_of(0, [], []) == []


def test_registers() -> None:
    """A word that is in no memory is a root, if it points to a block."""
    starts = np.array([HEAP, HEAP + 128], np.uint64)
    scan = PointerScan(BlockTable(starts, np.array([64, 64], np.uint64)))
    scan.add_roots(np.array([0, HEAP - 8, HEAP + 64, HEAP + 128, 1 << 63], np.uint64))
    assert classify(scan.pointers(), np.zeros(2, bool)).tolist() == [
        KINDS.index(DIRECT),
        KINDS.index(REACHABLE),
    ]


@pytest.mark.parametrize("allocators", [False, True])
def test_what_glibc_calls_the_next_chunk(allocators: bool) -> None:
    """A chunk begins with the last word of the block before it: in glibc's own lists that word is not a
    pointer.
    """
    scan = PointerScan(BlockTable(np.array([HEAP], np.uint64), np.array([24], np.uint64)))
    words = np.array([HEAP + 16], np.uint64)
    scan.add_memory(np.array([ROOTS], np.uint64), np.array([1]), words, allocators=allocators)
    (kind,) = classify(scan.pointers(), np.zeros(1, bool))
    assert KINDS[kind] == (DIRECT if allocators else POSSIBLE)


@pytest.mark.parametrize(
    ("place", "in_use", "kind"),
    [
        (0x200, [], DIRECT),  # in no block: freed
        (0x200, None, REACHABLE),  # the blocks in use are unknown
        (0x200, [(0x1F0, 64)], REACHABLE),  # in a block that came meanwhile
        (0x240, [(0x1F0, 64)], DIRECT),  # behind that
        (0x040, [], REACHABLE),  # in what glibc has rounded the 57 bytes of the block before up to
        (0x048, [], DIRECT),  # the size of the next chunk
        (0x1000, [], REACHABLE),  # outside of the heap that is known
    ],
)
def test_memory_that_was_freed(place: int, in_use: list[tuple[int, int]] | None, kind: Reachability) -> None:
    """A pointer in it counts unless it is known for sure that no block is there."""
    blocks = BlockTable(np.array([HEAP, HEAP + 0x800], np.uint64), np.array([57, 64], np.uint64))
    scan = PointerScan(blocks, HeapRanges([(HEAP, HEAP + 0x1000)]))
    words = np.array([HEAP + 0x800], np.uint64)
    scan.add_memory(np.array([HEAP + place], np.uint64), np.array([1]), words, allocators=True)
    table = None
    if in_use is not None:
        starts, sizes = [HEAP + start for start, _ in in_use], [size for _, size in in_use]
        table = BlockTable(np.array(starts, np.uint64), np.array(sizes, np.uint64))
    kinds = classify(scan.pointers(table), np.zeros(2, bool))
    assert KINDS[kinds[1]] == kind
    assert scan.dismissed == ([(HEAP + place, HEAP + place + 8)] if kind is DIRECT else [])


@pytest.mark.parametrize(
    ("start", "size", "usable"),
    [(0x7000, 1, 24), (0x7000, 24, 24), (0x7000, 25, 40), (0x7010, 5000, 8176), (0x7020, 70_000, 73_696)],
)
def test_what_may_be_used_of_a_block(start: int, size: int, usable: int) -> None:
    """The same as malloc_usable_size; for blocks that may have pages of their own, all of the last page."""
    blocks = BlockTable(np.array([start], np.uint64), np.array([size], np.uint64))
    addresses = np.array([start - 1, start, start + usable - 1, start + usable], np.uint64)
    assert blocks.is_usable(addresses).tolist() == [False, True, True, False]


def test_how_much_of_memory_is_known() -> None:
    """For parts that reach into ranges, over them, or past them."""
    heap = HeapRanges([(100, 200), (300, 500)])
    parts = np.array([(0, 100), (50, 150), (150, 350), (400, 900), (900, 1000)], np.uint64)
    assert heap.bytes_of(parts[:, 0], parts[:, 1]) == 0 + 50 + 100 + 100 + 0
    assert HeapRanges().bytes_of(parts[:, 0], parts[:, 1]) == 0
    assert heap.find(np.array([99, 100, 199, 200, 499, 500], np.uint64)).tolist() == [-1, 0, 0, -1, 1, -1]


def test_distant_parts_of_a_heap() -> None:
    """Blocks all over the address space are distinguished from memory between them."""
    starts = np.array([0x1000 + part * (64 << 30) for part in range(23)], np.uint64)
    blocks = BlockTable(starts, np.full(23, 64, np.uint64))
    islands = blocks.islands()
    assert len(islands) <= 4
    assert all(any(low <= start < high for low, high in islands) for start in starts.tolist())
    scan = PointerScan(blocks)
    scan.add_memory(np.array([ROOTS], np.uint64), np.array([23]), starts, allocators=False)
    assert classify(scan.pointers(), np.zeros(23, bool)).tolist() == [KINDS.index(REACHABLE)] * 23


def slow_kinds(
    count: int, links: list[tuple[int, int, int]], roots: list[tuple[int, int]], more_roots: set[int]
) -> list[Reachability]:
    """The definitions, word by word."""

    def closure(seeds: set[int], edges: list[tuple[int, int]]) -> set[int]:
        found = set(seeds)
        while more := {target for source, target in edges if source in found} - found:
            found |= more
        return found

    edges = [(source, target) for source, target, offset in links if offset < BLOCK_BYTES]
    to_starts = [(source, target) for source, target, offset in links if offset == 0]
    reachable = closure({target for target, offset in roots if offset == 0} | more_roots, to_starts)
    held = closure(reachable | {target for target, offset in roots if offset < BLOCK_BYTES}, edges)
    lost = set(range(count)) - held
    led_by = {block: {a for a in lost if block in closure({a}, edges)} for block in lost}
    kinds = []
    for block in range(count):
        if block in reachable:
            kinds.append(REACHABLE)
        elif block in held:
            kinds.append(POSSIBLE)
        else:
            # Lost directly: all that lead to it are led to by it (one circle), and it is the first of them.
            circle = all(block in led_by[other] for other in led_by[block])
            kinds.append(DIRECT if circle and block == min(led_by[block]) else INDIRECT)
    return kinds


HEAPS = st.integers(1, 9).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(
            st.tuples(
                st.integers(0, count - 1), st.integers(0, count - 1), st.sampled_from([0, 0, 8, 63, 64])
            ),
            max_size=8,
        ),
        st.lists(st.tuples(st.integers(0, count - 1), st.sampled_from([0, 8, 63, 64])), max_size=3),
        st.sets(st.integers(0, count - 1), max_size=2),
    )
)


@given(HEAPS)
def test_any_heap(heap) -> None:
    """As the definitions say."""
    assert kinds_of(*heap) == slow_kinds(*heap)


@given(HEAPS)
def test_any_heap_in_small_portions(heap) -> None:
    """Words are looked up and links dropped in between, at any time, and fronts are wide or narrow."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pointers, "_WORDS_MAX", 1)
        patched.setattr(pointers, "_LINKS_MAX", 1)
        patched.setattr(block_graph, "_WIDE", 0)
        assert kinds_of(*heap) == slow_kinds(*heap)


def test_a_long_list_and_a_wide_tree() -> None:
    """A hundred thousand blocks, one after the other or all at once."""
    count = 100_003
    after = [(block, block + 1, 0) for block in range(count - 1)]
    assert set(kinds_of(count, after, [(0, 0)])) == {REACHABLE}
    kinds = kinds_of(count, after, [])
    assert (kinds[0], set(kinds[1:])) == (DIRECT, {INDIRECT})
    tree = [((block - 1) // 3, block, 0) for block in range(1, count)]
    assert set(kinds_of(count, tree, [(0, 0)])) == {REACHABLE}


@pytest.mark.parametrize(
    ("sums", "answer"),
    [
        (ReachabilitySums(), None),
        (ReachabilitySums(still_reachable_bytes=1, still_reachable_count=1), True),
        (ReachabilitySums(possibly_lost_bytes=1, possibly_lost_count=1), True),
        (ReachabilitySums(directly_lost_bytes=1, directly_lost_count=1), False),
        (ReachabilitySums(directly_lost_bytes=0, directly_lost_count=1), False),
        (ReachabilitySums(1, 1, 1, 1, 1, 1, 1, 1), False),
        (ReachabilitySums(1, 1, 1, 1, 1, 1, 2, 1), None),
    ],
)
def test_a_call_site_as_a_whole(sums: ReachabilitySums, answer: bool | None) -> None:
    """Reachable if nothing is lost, not if half of it is, and undecided in between."""
    assert is_reachable(sums) is answer
