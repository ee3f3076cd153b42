"""Memory by use, and what explains it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.analysis.memory_parts import Part, classify, shares, summarise, with_arenas
from bpfleakd.model.address_space import MemoryUse, UseSummary
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.table.regions import Special

from .usages import ARENA, PAGE, a_usage

A = SiteKey(AllocationKind.MMAP, 1)
B = SiteKey(AllocationKind.MMAP, 2)
COMMIT = SiteKey(AllocationKind.COMMIT, 3)


def at(page: int) -> int:
    return ARENA + page * PAGE


def figures(parts: list[Part]) -> list[tuple]:
    """Use, kind, and pages: virtual, resident, dirty, swapped."""
    return [
        (
            part.use.value,
            part.kind and part.kind.value,
            part.figures.virtual_bytes // PAGE,
            part.figures.resident_bytes // PAGE,
            part.figures.private_dirty_bytes // PAGE,
            part.figures.swap_bytes // PAGE,
        )
        for part in parts
    ]


class TestClassify:
    """Mappings into parts."""

    def test_a_mapping_of_one_use_is_one_part(self):
        """With the kernel's figures; nothing is counted."""
        usages = [
            a_usage(at(0), 3, path="/bin/x", rights="r-x", resident_pages=2, dirty_pages=0),
            a_usage(at(10), 5, resident_pages=4, swap_pages=1),
            a_usage(at(1 << 20), 1, rights="--x", path="[vsyscall]"),
        ]

        def count(*_: int) -> None:
            raise AssertionError("nothing to count")

        assert figures(classify(usages, [(at(10), at(15), A)], (), count)) == [
            ("files", None, 3, 2, 0, 0),
            ("mmap", "mmap", 5, 4, 4, 1),
        ]

    def test_neighbours_that_the_kernel_joined_are_counted_by_pages(self):
        """Each owner's part has its resident pages; sites of one kind stay one part."""
        usage = a_usage(at(0), 20, resident_pages=9, swap_pages=2)
        owners = [
            (at(-5), at(3), Special.ALLOCATOR),
            (at(3), at(5), A),
            (at(5), at(8), B),
            (at(12), at(14), COMMIT),
            (at(18), at(25), A),
        ]
        pages = {at(0): (3, 0), at(3): (1, 1), at(8): (2, 0), at(12): (2, 0), at(14): (0, 1), at(18): (1, 0)}

        def count(start: int, end: int) -> tuple[int, int]:
            resident, swapped = pages.pop(start)
            return resident * PAGE, swapped * PAGE

        assert figures(classify([usage], owners, (), count)) == [
            ("heap", None, 3, 3, 3, 0),
            ("mmap", "mmap", 5, 1, 1, 1),
            ("mmap", None, 4, 2, 2, 0),
            ("commit", "commit", 2, 2, 2, 0),
            ("mmap", None, 4, 0, 0, 1),
            ("mmap", "mmap", 2, 1, 1, 0),
        ]
        assert pages == {}

    def test_an_owner_over_several_mappings(self):
        """The kernel separates memory with different protection."""
        usages = [a_usage(at(0), 2), a_usage(at(2), 3, "rwx"), a_usage(at(7), 1)]
        assert [row[:3] for row in figures(classify(usages, [(at(1), at(9), A)], (), lambda *_: (0, 0)))] == [
            ("mmap", None, 1),
            ("mmap", "mmap", 1),
            ("jit", "mmap", 3),
            ("mmap", "mmap", 1),
        ]

    def test_what_cannot_be_counted_is_shared_out_and_marked(self):
        """By size; the sums stay the kernel's."""
        usage = a_usage(at(0), 10, resident_pages=7, swap_pages=1)
        parts = classify([usage], [(at(0), at(3), Special.ALLOCATOR)])
        assert [part.estimated for part in parts] == [True, True]
        assert sum(part.figures.resident_bytes for part in parts) == 7 * PAGE
        assert parts[0].figures.resident_bytes == 3 * 7 * PAGE // 10
        empty = classify([a_usage(at(0), 10)], [(at(0), at(3), Special.ALLOCATOR)])
        assert [part.estimated for part in empty] == [False, False]

    def test_looks_end_where_they_end(self):
        """A stack that more memory was joined to; an owner goes before looks."""
        guard, stack = a_usage(at(0), 1, "---"), a_usage(at(1), 2_100)
        owners = [(at(0), at(1_000), Special.BASELINE), (at(1_000), at(1_001), A)]
        parts = classify([guard, stack], owners, [at(23)], lambda *_: (0, 0))
        assert [row[:3] for row in figures(parts)] == [
            ("reserved", None, 1),
            ("thread-stacks", None, 999),
            ("mmap", "mmap", 1),
            ("thread-stacks", None, 2_048 - 1_000),
            ("mmap", None, 52),
        ]

    def test_an_arena_with_its_rest(self):
        """The rest of its 64 MiB is reserved, and more memory that the kernel joined to it is none of it."""
        usages = [a_usage(at(0), 7, resident_pages=7), a_usage(at(7), 9, "---")]
        owners = with_arenas([], [(at(0), at(5))])
        assert [row[:3] for row in figures(classify(usages, owners, (), lambda *_: (0, 0)))] == [
            ("heap", None, 5),
            ("mmap", None, 2),
            ("reserved", None, 9),
        ]

    def test_what_came_after_the_attach_keeps_its_owner(self):
        """An arena's memory may have been unmapped, and mapped by the program."""
        owners = [
            (at(0), at(4), Special.BASELINE),
            (at(4), at(6), A),
            (at(9), at(12), Special.UNRECORDED),
            (at(12), at(14), B),
        ]
        arenas = [(at(1), at(3)), (at(5), at(10)), (at(13), at(14)), (at(20), at(21))]
        assert with_arenas(owners, arenas) == [
            (at(1), at(3), Special.ALLOCATOR),
            (at(4), at(6), A),
            (at(6), at(10), Special.ALLOCATOR),
            (at(12), at(14), B),
            (at(20), at(21), Special.ALLOCATOR),
        ]


_owner = st.sampled_from([None, A, B, COMMIT, *Special])


@given(
    mappings=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 6), st.sampled_from(["rw-", "---", "rwx"])), max_size=6
    ),
    cuts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), _owner), max_size=12),
    counted=st.lists(st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5),
    live_bytes=st.integers(0, 50 * PAGE),
)
def test_parts_and_shares_always_add_up(mappings, cuts, counted, live_bytes):
    """Whatever the owners are and whatever is counted; no figure is negative."""
    usages, page = [], 0
    for gap, pages, rights in mappings:
        page += gap
        usages.append(a_usage(at(page), pages, rights, resident_pages=pages // 2, swap_pages=pages // 3))
        page += pages
    owners, page = [], 0
    for gap, pages, owner in cuts:
        page += gap
        if owner is not None:
            owners.append((at(page), at(page + pages), owner))
        page += pages
    answers = iter(counted * 100)

    def count(_start: int, _end: int) -> tuple[int, int] | None:
        found = next(answers)
        return found and (found[0] * PAGE, found[1] * PAGE)

    parts = classify(usages, owners, (), count)
    for field in ("resident_bytes", "swap_bytes", "private_dirty_bytes"):
        assert sum(getattr(p.figures, field) for p in parts) == sum(getattr(u, field) for u in usages)
        assert all(getattr(part.figures, field) >= 0 for part in parts)
    assert sum(part.figures.virtual_bytes for part in parts) == sum(
        usage.mapping.end - usage.mapping.start for usage in usages
    )
    found = shares(parts, live_bytes)
    figures = (
        found.tracked_heap_bytes,
        found.tracked_mmap_bytes,
        found.tracked_commit_bytes,
        found.allocator_retained_bytes,
        found.rest_bytes,
    )
    assert sum(figures) == sum(usage.resident_bytes for usage in usages)
    assert min(figures) >= 0
    assert 0 <= found.explained_share <= 1


class TestSummarise:
    """Parts into rows."""

    def test_sums_by_use_in_their_order(self):
        """Without a first summary nothing has grown."""
        parts = classify([a_usage(at(0), 3, resident_pages=1), a_usage(at(9), 5), a_usage(path="[heap]")])
        assert summarise(parts) == (
            UseSummary(MemoryUse.HEAP, 1, 23 * PAGE, 0, 0, 0, 0, 0),
            UseSummary(MemoryUse.MMAP, 2, 8 * PAGE, PAGE, PAGE, 0, 0, 0),
        )

    def test_growth_is_the_difference_to_the_first(self):
        """Also of a use that was not there, and of one that is there no more."""
        first = summarise(
            classify([a_usage(at(0), 5, resident_pages=5), a_usage(at(9), 3, "rwx", resident_pages=2)])
        )
        now = summarise(
            classify([a_usage(at(0), 3, resident_pages=1), a_usage(path="[heap]", resident_pages=7)]), first
        )
        growth = {
            row.use.value: (row.virtual_growth_bytes // PAGE, row.resident_growth_bytes // PAGE)
            for row in now
        }
        assert growth == {"heap": (23, 7), "mmap": (-2, -4), "jit": (-3, -2)}
        assert now[-1] == UseSummary(MemoryUse.JIT, 0, 0, 0, 0, 0, -3 * PAGE, -2 * PAGE)


class TestShares:
    """The explanation of the resident memory."""

    def test_what_the_heap_holds_beyond_live_blocks_is_the_allocators(self):
        """The rest has no known owner."""
        parts = classify(
            [
                a_usage(at(0), 10, path="[heap]", resident_pages=10),
                a_usage(at(20), 10, resident_pages=5),
                a_usage(at(40), 10, resident_pages=3),
                a_usage(at(60), 10, path="/bin/x", resident_pages=2),
            ],
            [(at(20), at(30), A), (at(40), at(50), COMMIT)],
        )
        found = shares(parts, 7 * PAGE + 1)
        assert (found.tracked_heap_bytes, found.allocator_retained_bytes) == (7 * PAGE + 1, 3 * PAGE - 1)
        assert (found.tracked_mmap_bytes, found.tracked_commit_bytes) == (5 * PAGE, 3 * PAGE)
        assert (found.rest_bytes, found.explained_share) == (2 * PAGE, 0.9)

    def test_live_blocks_may_be_where_no_heap_is_known(self):
        """Another allocator got its memory before the attach; blocks never written to are not in memory."""
        parts = classify([a_usage(at(0), 10, resident_pages=4), a_usage(path="[heap]", resident_pages=1)])
        assert shares(parts, 3 * PAGE).rest_bytes == 2 * PAGE
        found = shares(parts, 1_000 * PAGE)
        assert (found.tracked_heap_bytes, found.allocator_retained_bytes) == (5 * PAGE, 0)

    def test_nothing_in_memory_is_explained_by_nothing(self):
        """A process that is all swapped out."""
        assert shares([], 23).explained_share == 0.0
