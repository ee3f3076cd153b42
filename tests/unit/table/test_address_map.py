"""The address map: each rule as a claim, and random operations against a map of pages."""

from __future__ import annotations

import random
import time

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.site import AllocationKind, SiteCounters, SiteKey
from bpfleakd.table.address_map import AddressMap
from bpfleakd.table.census import SiteCensus
from bpfleakd.table.map_checkpoint import MapCheckpoint
from bpfleakd.table.regions import LiveRegion, Special
from bpfleakd.table.site_table import SiteTable

from .reference_map import PAGE, ReferenceMap

BASE = 0x7F00_0000_0000
A = SiteKey(AllocationKind.MMAP, 0xA)
B = SiteKey(AllocationKind.MMAP, 0xB)
COMMIT = SiteKey(AllocationKind.COMMIT, 0xC)
STACK = SiteKey(AllocationKind.THREAD_STACK, 0xD)
FILE = SiteKey(AllocationKind.FILE, 0xE)


def page(number: int) -> int:
    return BASE + number * PAGE


def a_mapping(first: int, count: int, rights: str = "rw-", path: str = "") -> Mapping:
    return Mapping(page(first), page(first + count), 0, "00:00", 0, path, *(right != "-" for right in rights))


def counters(address_map: AddressMap, site: SiteKey = A) -> tuple[int, int, int, int]:
    """Pages live, regions live, pages ever, regions ever."""
    found = address_map.totals(site)
    return found.live_bytes // PAGE, found.live_count, found.allocated_bytes // PAGE, found.allocated_count


def owners(address_map: AddressMap, first: int, count: int) -> list:
    return [address_map.owner_at(page(n)) for n in range(first, first + count)]


# -- mmap and munmap ---------------------------------------------------------------------------------------


def test_a_mapping_is_of_its_site():
    """From its first byte to the end of its last page."""
    space = AddressMap()
    space.mapped(page(0), 3 * PAGE - 1, A, 23, 101)
    assert counters(space) == (3, 1, 3, 1)
    assert [space.owner_at(a) for a in (page(0) - 1, page(0), page(3) - 1, page(3))] == [None, A, A, None]
    assert space.regions(A) == [LiveRegion(page(0), 3 * PAGE, 23, 101)]
    assert space.census() == {A: SiteCensus(23, {101: 3 * PAGE}, {101: 1})}


def test_a_huge_page_mapping_is_rounded_to_huge_pages():
    """As the kernel does for MAP_HUGETLB."""
    space = AddressMap()
    space.mapped(BASE, 1, A, 0, 1, page_bytes=2 << 20)
    assert space.totals(A).live_bytes == 2 << 20


def test_a_hole_in_the_middle_leaves_one_region():
    """Until its last byte is gone."""
    space = AddressMap()
    space.mapped(page(0), 7 * PAGE, A, 0, 1)
    space.unmapped(page(2), 2 * PAGE)
    assert counters(space) == (5, 1, 7, 1)
    assert [(r.start, r.length_bytes) for r in space.regions(A)] == [
        (page(0), 2 * PAGE),
        (page(4), 3 * PAGE),
    ]
    space.unmapped(page(0), 2 * PAGE)
    assert counters(space) == (3, 1, 7, 1)
    space.unmapped(page(4), 3 * PAGE)
    assert counters(space) == (0, 0, 7, 1)
    assert len(space) == 0


def test_munmap_goes_over_several_mappings_and_gaps():
    """And removes what it covers."""
    space = AddressMap()
    for first in (0, 4, 8):
        space.mapped(page(first), 3 * PAGE, A, 0, 1)
    space.unmapped(page(1), 8 * PAGE)
    assert counters(space) == (3, 2, 9, 3)
    space.unmapped(page(20), PAGE)
    space.unmapped(page(0), 0)
    assert counters(space) == (3, 2, 9, 3)


def test_a_fixed_mapping_replaces_what_was_there():
    """Some of it, and all of it."""
    space = AddressMap()
    space.mapped(page(0), 5 * PAGE, A, 0, 1)
    space.mapped(page(1), 2 * PAGE, B, 0, 1)
    assert owners(space, 0, 6) == [A, B, B, A, A, None]
    assert (counters(space, A), counters(space, B)) == ((3, 1, 5, 1), (2, 1, 2, 1))
    space.mapped(page(0), 5 * PAGE, A, 0, 1)
    assert (counters(space, A), counters(space, B)) == ((5, 1, 10, 2), (0, 0, 2, 1))


def test_mappings_side_by_side_stay_apart():
    """The kernel joins them; their births and threads differ."""
    space = AddressMap()
    space.mapped(page(0), PAGE, A, 7, 1)
    space.mapped(page(1), PAGE, A, 5, 2)
    assert len(space) == 2
    assert counters(space)[1] == 2
    assert space.census()[A] == SiteCensus(5, {1: PAGE, 2: PAGE}, {1: 1, 2: 1})


# -- mremap ------------------------------------------------------------------------------------------------


def moved(space: AddressMap, old: tuple[int, int], new: tuple[int, int], site=B, **options) -> None:
    space.take(1, page(old[0]), old[1] * PAGE)
    space.put(1, page(new[0]), new[1] * PAGE, site, 9, **options)


def test_mremap_that_grows_gives_the_growth_to_its_caller():
    """The earlier part stays with its creator."""
    space = AddressMap()
    space.mapped(page(0), 3 * PAGE, A, 5, 1)
    moved(space, (0, 3), (0, 5))
    assert owners(space, 0, 6) == [A, A, A, B, B, None]
    assert (counters(space, A), counters(space, B)) == ((3, 1, 3, 1), (2, 1, 2, 1))
    assert space.regions(B) == [LiveRegion(page(3), 2 * PAGE, 9, 1)]


def a_million_loops_s() -> float:
    """How long this machine takes for them just now."""
    began_s = time.thread_time()
    sum(number * number for number in range(1_000_000))
    return time.thread_time() - began_s


@pytest.mark.parametrize("places", [(0,), (0, 1 << 20)])
def test_a_vector_that_grew_by_mremap_for_long_moves_in_little_time(places: tuple[int, ...]):
    """Each step is a region; two calls of each step are a few milliseconds, however many there were."""
    address_map, steps = AddressMap(), 1_500
    address_map.mapped(page(0), PAGE, A, 0, 1)
    # A busy host makes a machine several times as slow, now and then.
    loops_s = a_million_loops_s()
    began_s, place = time.thread_time(), 0
    for pages in range(1, steps):
        # One that may not move fails, and is called again.
        address_map.take(1, page(place), pages * PAGE)
        address_map.put_back(1)
        address_map.take(1, page(place), pages * PAGE)
        place = places[pages % len(places)]
        address_map.put(1, page(place), (pages + 1) * PAGE, A, pages)
    assert counters(address_map) == (steps, steps, steps, steps)
    assert [region.born_ns for region in address_map.regions(A)] == list(range(steps))
    took_s = time.thread_time() - began_s
    # It took several times as long where pieces were put back one by one.
    assert took_s < 50 * (loops_s + a_million_loops_s()) / 2


def test_a_vector_that_grows_for_long_has_few_regions_that_stand_for_all():
    """A hundred steps a second for long; births are known within a sixty-fourth of the age."""
    space, steps, step_ns = AddressMap(), 10_000, 10_000_000
    space.mapped(page(0), PAGE, A, 0, 1)
    for pages in range(1, steps):
        space.take(1, page(0), pages * PAGE)
        space.put(1, page(0), (pages + 1) * PAGE, A, pages * step_ns)
    assert len(space) < 2_010
    assert counters(space) == (steps, steps, steps, steps)
    assert space.census()[A] == SiteCensus(0, {1: steps * PAGE}, {1: steps})
    space = AddressMap.restored(
        msgspec.json.decode(msgspec.json.encode(space.checkpoint()), type=MapCheckpoint)
    )
    for born in (steps // 10, steps // 2, steps - 100):
        since = [one for one in space.regions(A) if one.born_ns >= born * step_ns]
        assert sum(one.count for one in since) == pytest.approx(steps - born, rel=1 / 60, abs=1)
        assert sum(one.length_bytes for one in since) == PAGE * sum(one.count for one in since)
    # As many go as of the bytes.
    moved(space, (0, steps), (0, steps // 3))
    live, regions, *ever = counters(space)
    assert (live, ever) == (steps // 3, [steps, steps])
    assert regions == pytest.approx(steps // 3, abs=1)
    space.unmapped(page(10), PAGE)
    assert sum(one.count for one in space.regions(A)) == pytest.approx(steps // 3 - 1, abs=3)
    space.unmapped(page(0), steps * PAGE)
    assert counters(space) == (0, 0, steps, steps)


def test_mremap_that_shrinks_takes_the_end_away():
    """And gives nothing to anybody."""
    space = AddressMap()
    space.mapped(page(0), 5 * PAGE, A, 5, 1)
    moved(space, (0, 5), (0, 2))
    assert owners(space, 0, 5) == [A, A, None, None, None]
    assert (counters(space, A), counters(space, B)) == ((2, 1, 5, 1), (0, 0, 0, 0))


def test_mremap_that_moves_replaces_what_is_at_the_new_place():
    """MREMAP_FIXED, and a part of a larger mapping."""
    space = AddressMap()
    space.mapped(page(0), 5 * PAGE, A, 5, 1)
    space.mapped(page(10), 5 * PAGE, B, 6, 1)
    moved(space, (1, 2), (11, 3), COMMIT)
    assert owners(space, 0, 5) == [A, None, None, A, A]
    assert owners(space, 10, 5) == [B, A, A, COMMIT, B]
    assert counters(space, A) == (5, 1, 5, 1)
    assert counters(space, B) == (2, 1, 5, 1)
    assert counters(space, COMMIT) == (1, 1, 1, 1)


def test_mremap_of_several_mappings_leaves_alone_what_lies_under_their_gaps():
    """Linux 6.17 moves them one by one, and does not unmap the rest of the new place."""
    space = AddressMap()
    space.mapped(page(0), PAGE, A, 5, 1)
    space.mapped(page(2), PAGE, A, 5, 1)
    space.mapped(page(10), 3 * PAGE, B, 6, 1)
    moved(space, (0, 3), (10, 3), COMMIT)
    assert owners(space, 0, 3) == [None, None, None]
    assert owners(space, 10, 3) == [A, B, A]
    assert counters(space, B) == (1, 1, 3, 1)


def test_mremap_that_keeps_the_old_range_makes_a_new_mapping():
    """MREMAP_DONTUNMAP; an old length of 0, which doubles a shared mapping, is the same."""
    space = AddressMap()
    space.mapped(page(0), 3 * PAGE, A, 5, 1)
    moved(space, (0, 3), (10, 3), keep_old=True)
    moved(space, (0, 0), (20, 3))
    assert owners(space, 0, 3) + owners(space, 10, 3) + owners(space, 20, 3) == [A] * 3 + [B] * 6
    assert (counters(space, A), counters(space, B)) == ((3, 1, 3, 1), (6, 2, 6, 2))


@pytest.mark.parametrize(
    ("before", "caller", "after"),
    [
        (A, B, B),
        (Special.BASELINE, B, B),
        (Special.ALLOCATOR, B, Special.ALLOCATOR),
        (A, Special.ALLOCATOR, Special.ALLOCATOR),
        (Special.RESERVED, B, Special.RESERVED),
        (Special.DISCARDED, B, B),
        (FILE, B, SiteKey(AllocationKind.FILE, B.stack_id)),
        (STACK, B, SiteKey(AllocationKind.THREAD_STACK, B.stack_id)),
    ],
)
def test_what_mremap_adds_is_memory_of_the_same_kind(before, caller, after):
    """A reserved range grows by reserved addresses, a file mapping by more of the file."""
    space = AddressMap()
    space.mapped(page(0), PAGE, before, 5, 1)
    moved(space, (0, 1), (0, 2), caller)
    assert owners(space, 0, 2) == [before, after]
    moved(space, (1, 1), (10, 1), caller, keep_old=True)
    moved(space, (1, 0), (20, 1), caller)
    assert owners(space, 10, 1) + owners(space, 20, 1) == [after, after]


def test_an_mremap_that_fails_changes_nothing():
    """Also where parts of the range belong to different sites."""
    space = AddressMap()
    space.mapped(page(0), 2 * PAGE, A, 5, 1)
    space.mapped(page(2), 2 * PAGE, B, 6, 1)
    space.take(1, page(1), 3 * PAGE)
    space.put_back(1)
    assert owners(space, 0, 4) == [A, A, B, B]
    assert counters(space, A) == (2, 1, 2, 1)
    space.put_back(1)
    assert len(space) == 2


def test_another_thread_may_get_the_old_range_before_mremap_returns():
    """Its mapping is not taken for the one that moved, and what moves is live all the time."""
    space = AddressMap()
    space.mapped(page(0), 3 * PAGE, A, 5, 1)
    space.take(1, page(0), 3 * PAGE)
    assert counters(space, A) == (3, 1, 3, 1)
    assert space.census()[A].live_bytes_by_tid == {1: 3 * PAGE}
    assert len(space.regions(A)) == 1
    space.mapped(page(0), 2 * PAGE, B, 7, 2)
    space.put(1, page(10), 3 * PAGE, COMMIT, 9)
    assert owners(space, 0, 3) + owners(space, 10, 3) == [B, B, None, A, A, A]
    assert (counters(space, A), counters(space, B)) == ((3, 1, 3, 1), (2, 1, 2, 1))


def test_a_failed_call_does_not_bring_back_what_others_unmapped_or_replaced():
    """They did so while the call was under way."""
    space = AddressMap()
    space.mapped(page(0), 5 * PAGE, A, 5, 1)
    space.take(1, page(0), 5 * PAGE)
    space.unmapped(page(1), PAGE)
    space.mapped(page(3), PAGE, B, 7, 2)
    space.put_back(1)
    assert owners(space, 0, 5) == [A, None, A, B, A]
    assert counters(space, A) == (3, 1, 5, 1)


def test_munmap_in_two_steps():
    """The range is gone, and what another thread mapped there meanwhile is not."""
    space = AddressMap()
    space.mapped(page(0), 3 * PAGE, A, 5, 1)
    space.take(1, page(0), 3 * PAGE)
    space.mapped(page(1), PAGE, B, 7, 2)
    space.release(1)
    assert owners(space, 0, 3) == [None, B, None]
    assert counters(space, A) == (0, 0, 3, 1)


def test_a_lost_result_counts_as_a_failure():
    """The next call of the thread shows that the last one has ended."""
    space = AddressMap()
    space.mapped(page(0), 3 * PAGE, A, 5, 1)
    space.take(1, page(0), PAGE)
    space.take(1, page(1), PAGE)
    space.put_back(1)
    assert owners(space, 0, 3) == [A] * 3


def test_a_result_without_its_call_is_memory_that_nobody_knows():
    """Moved and added memory cannot be distinguished."""
    space = AddressMap()
    space.put(1, page(0), PAGE, A, 9)
    assert owners(space, 0, 1) == [Special.BASELINE]
    space.release(1)
    assert counters(space) == (0, 0, 0, 0)


# -- mprotect, madvise, brk --------------------------------------------------------------------------------


def test_reserved_memory_is_committed_by_who_makes_it_accessible():
    """One mprotect is one region, also over several parts; accessible memory keeps its owner."""
    space = AddressMap()
    space.mapped(page(0), 10 * PAGE, Special.RESERVED, 5, 1)
    space.mapped(page(4), PAGE, A, 6, 1)
    space.protected(page(2), 5 * PAGE, True, COMMIT, 7, 2)
    reserved = Special.RESERVED
    assert owners(space, 0, 8) == [reserved, reserved, COMMIT, COMMIT, A, COMMIT, COMMIT, reserved]
    assert counters(space, COMMIT) == (4, 1, 4, 1)
    space.protected(page(2), 5 * PAGE, True, SiteKey(AllocationKind.COMMIT, 1), 8, 2)
    assert counters(space, COMMIT) == (4, 1, 4, 1)
    assert space.census()[COMMIT] == SiteCensus(7, {2: 4 * PAGE}, {2: 1})


def test_committing_nothing_is_no_region():
    """mprotect of accessible memory, of unmapped memory, and of no bytes."""
    space = AddressMap()
    space.mapped(page(0), PAGE, A, 5, 1)
    for first, count in ((0, 1), (5, 1), (0, 0)):
        space.protected(page(first), count * PAGE, True, COMMIT, 7, 2)
    assert counters(space, COMMIT) == (0, 0, 0, 0)


def test_memory_without_access_is_nobodys():
    """And can be committed again, by another."""
    space = AddressMap()
    space.mapped(page(0), 5 * PAGE, A, 5, 1)
    space.protected(page(1), 2 * PAGE, False, COMMIT, 6, 1)
    assert owners(space, 0, 4) == [A, Special.RESERVED, Special.RESERVED, A]
    assert counters(space) == (3, 1, 5, 1)
    space.protected(page(0), 2 * PAGE, True, COMMIT, 7, 1)
    assert owners(space, 0, 4) == [A, COMMIT, Special.RESERVED, A]


def test_what_was_reserved_before_the_attach_can_be_committed():
    """A managed heap reserves at its start and commits all its life."""
    space = AddressMap([a_mapping(0, 4, "---"), a_mapping(4, 2), a_mapping(9, 1, "r-x", "[vsyscall]")])
    assert owners(space, 0, 7) == [Special.RESERVED] * 4 + [Special.BASELINE] * 2 + [None]
    assert owners(space, 9, 1) == [None]
    space.protected(page(3), 2 * PAGE, True, COMMIT, 7, 1)
    assert counters(space, COMMIT) == (1, 1, 1, 1)
    assert space.totals(Special.RESERVED).live_bytes == 3 * PAGE


def test_the_allocators_memory_stays_the_allocators():
    """Its arenas grow by mprotect and shrink by mprotect or madvise, partly on its own threads."""
    space = AddressMap()
    space.mapped(page(0), 5 * PAGE, Special.ALLOCATOR, 5, 1)
    space.protected(page(0), 2 * PAGE, False, COMMIT, 6, 1)
    space.protected(page(0), 2 * PAGE, True, COMMIT, 6, 1)
    space.discarded(page(0), 2 * PAGE)
    space.mapped(page(5), PAGE, Special.RESERVED, 5, 1)
    space.protected(page(5), PAGE, True, Special.ALLOCATOR, 6, 1)
    assert owners(space, 0, 6) == [Special.ALLOCATOR] * 6
    assert space.counters()[0] == []


def test_discarded_memory_is_not_live_until_it_is_committed_again():
    """Only committed memory: a program that drops a buffer of its own still holds it."""
    space = AddressMap()
    space.mapped(page(0), 4 * PAGE, Special.RESERVED, 5, 1)
    space.mapped(page(4), PAGE, A, 5, 1)
    space.protected(page(1), 3 * PAGE, True, COMMIT, 6, 1)
    space.discarded(page(0), 5 * PAGE)
    assert owners(space, 0, 5) == [Special.RESERVED, *[Special.DISCARDED] * 3, A]
    assert counters(space, COMMIT) == (0, 0, 3, 1)
    space.protected(page(2), PAGE, True, COMMIT, 8, 1)
    assert counters(space, COMMIT) == (1, 1, 4, 2)
    space.protected(page(0), 5 * PAGE, False, COMMIT, 9, 1)
    assert owners(space, 0, 5) == [Special.RESERVED] * 5


def test_the_break_goes_by_whole_pages():
    """It may end anywhere in a page."""
    space = AddressMap()
    space.program_break(page(0) + 5, page(2) + 1, A, 5, 1)
    assert owners(space, 0, 4) == [None, A, A, None]
    space.program_break(page(2) + 1, page(2) + 99, A, 5, 1)
    assert counters(space) == (2, 1, 2, 1)
    space.program_break(page(2) + 99, page(1) + 1, A, 5, 1)
    assert owners(space, 0, 4) == [None, A, None, None]


# -- the whole ---------------------------------------------------------------------------------------------


def test_counters_feed_the_site_table():
    """Sites without live regions are still there: allocated never falls."""
    space = AddressMap()
    space.mapped(page(0), 3 * PAGE, A, 5, 1)
    space.mapped(page(5), 2 * PAGE, B, 5, 1)
    space.unmapped(page(0), 3 * PAGE)
    table = SiteTable(0)
    table.update(7, *space.counters())
    assert table.counters(A) == SiteCounters(0, 0, 3 * PAGE, 1, peak_live_bytes=3 * PAGE)
    assert table.counters(B) == SiteCounters(2 * PAGE, 1, 2 * PAGE, 1, peak_live_bytes=2 * PAGE)
    assert table.update(8, *AddressMap().counters()) == 0


def test_a_full_map_refuses_and_counts():
    """Further memory counts as bytes, and known memory stays known."""
    space = AddressMap(intervals_max=2)
    for n in range(5):
        space.mapped(page(n), PAGE, A, n, 1)
    assert counters(space) == (2, 2, 2, 2)
    assert space.unrecorded_count == 3
    assert space.totals(Special.UNRECORDED).live_bytes == 3 * PAGE
    assert len(space) == 3


def test_resynchronise_agrees_with_proc():
    """Unmapped memory goes, new memory has no owner, and the rest stays; the difference is in bytes."""
    space = AddressMap()
    space.mapped(page(0), 4 * PAGE, A, 5, 1)
    space.mapped(page(6), 2 * PAGE, Special.RESERVED, 5, 1)
    space.mapped(page(8), 2 * PAGE, B, 5, 1)
    truth = [
        a_mapping(1, 5),
        a_mapping(6, 1),
        a_mapping(7, 1, "---"),
        a_mapping(8, 1, "---"),
        a_mapping(9, 1),
    ]
    # gone: 1 page; new: 2; now accessible: 1; no longer accessible: 1
    assert space.resynchronise(truth) == 5 * PAGE
    new, reserved = Special.BASELINE, Special.RESERVED
    assert owners(space, 0, 11) == [None, A, A, A, new, new, new, reserved, reserved, B, None]
    assert (counters(space, A), counters(space, B)) == ((3, 1, 4, 1), (1, 1, 2, 1))
    assert space.resynchronise(truth) == 0


def test_resynchronise_keeps_what_agrees_whatever_its_access():
    """A stack's guard page is a part of the stack, and so it is in an arena of the allocator."""
    space = AddressMap()
    space.mapped(page(0), 2 * PAGE, STACK, 5, 1)
    space.mapped(page(2), 2 * PAGE, Special.ALLOCATOR, 5, 1)
    truth = [a_mapping(0, 1, "---"), a_mapping(1, 2), a_mapping(3, 1, "---")]
    assert space.resynchronise(truth) == 0
    assert owners(space, 0, 4) == [STACK, STACK, Special.ALLOCATOR, Special.ALLOCATOR]


def test_resynchronise_ends_calls_under_way():
    """And takes lines of a map that changed while it was read."""
    space = AddressMap()
    space.mapped(page(0), 4 * PAGE, A, 5, 1)
    space.take(1, page(0), 4 * PAGE)
    assert space.resynchronise([a_mapping(0, 3), a_mapping(1, 1), a_mapping(2, 2)]) == 0
    space.put(1, page(10), PAGE, B, 9)
    assert owners(space, 0, 4) == [A] * 4


def test_operations_stay_fast_with_100_000_intervals():
    """An operation costs as much as the few intervals it touches; a naive list takes milliseconds."""
    space = AddressMap()
    for n in range(100_000):
        space.mapped(page(2 * n), PAGE, A, n, 1)
    numbers = random.Random(23)
    began_s = time.process_time()
    for _ in range(1_000):
        first = 2 * numbers.randrange(100_000)
        space.unmapped(page(first), PAGE)
        space.mapped(page(first), PAGE, B, 1, 1)
    assert time.process_time() - began_s < 1
    assert len(space) == 100_000


# -- against the reference ---------------------------------------------------------------------------------

_first = st.integers(0, 40)
_count = st.integers(0, 12)
_tid = st.integers(1, 3)
_owner = st.sampled_from([A, B, COMMIT, STACK, FILE, *Special])
_ragged = st.integers(0, PAGE - 1)


class AgainstPages(RuleBasedStateMachine):
    """Every operation on the map and on the reference; then all figures are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.space = AddressMap()
        self.reference = ReferenceMap()
        self.now_ns = 0

    def _length(self, count: int, ragged: int) -> int:
        return max(0, count * PAGE - ragged)

    def _tick(self) -> int:
        self.now_ns += 1
        return self.now_ns

    @rule(first=_first, count=_count, ragged=_ragged, owner=_owner, tid=_tid)
    def mapped(self, first, count, ragged, owner, tid):
        now = self._tick()
        self.space.mapped(page(first), self._length(count, ragged), owner, now, tid)
        self.reference.mapped(first, count, owner, now, tid)

    @rule(first=_first, count=_count, ragged=_ragged)
    def unmapped(self, first, count, ragged):
        self.space.unmapped(page(first), self._length(count, ragged))
        self.reference.unmapped(first, count)

    @rule(first=_first, count=_count, tid=_tid)
    def take(self, first, count, tid):
        self.space.take(tid, page(first), count * PAGE)
        self.reference.take(tid, first, count)

    @rule(tid=_tid)
    def put_back(self, tid):
        self.space.put_back(tid)
        self.reference.put_back(tid)

    @rule(tid=_tid)
    def release(self, tid):
        self.space.release(tid)
        self.reference.release(tid)

    @rule(tid=_tid, first=_first, count=_count, owner=_owner, keep_old=st.booleans())
    def put(self, tid, first, count, owner, keep_old):
        now = self._tick()
        self.space.put(tid, page(first), count * PAGE, owner, now, keep_old=keep_old)
        self.reference.put(tid, first, count, owner, now, keep_old)

    @rule(first=_first, count=_count, ragged=_ragged, accessible=st.booleans(), owner=_owner, tid=_tid)
    def protected(self, first, count, ragged, accessible, owner, tid):
        now = self._tick()
        self.space.protected(page(first), self._length(count, ragged), accessible, owner, now, tid)
        self.reference.protected(first, count, accessible, owner, now, tid)

    @rule(first=_first, count=_count)
    def discarded(self, first, count):
        self.space.discarded(page(first), count * PAGE)
        self.reference.discarded(first, count)

    @rule()
    def written_down_and_read_again(self):
        """As by a daemon that takes over from another."""
        text = msgspec.msgpack.encode(self.space.checkpoint())
        self.space = AddressMap.restored(msgspec.msgpack.decode(text, type=MapCheckpoint))

    @rule()
    def resynchronise_with_itself(self):
        """Compared with itself, only pending calls differ."""
        for tid in list(self.reference.moving):
            self.space.put_back(tid)
            self.reference.put_back(tid)
        truth = [
            Mapping(start, end, 0, "", 0, "", owner is not Special.RESERVED, False, False)
            for start, end, owner in self.space.ranges()
        ]
        assert self.space.resynchronise(truth) == 0

    @invariant()
    def every_page_has_the_same_owner(self):
        pages = {
            n: owner
            for start, end, owner in self.space.ranges()
            for n in range((start - BASE) // PAGE, (end - BASE) // PAGE)
        }
        assert pages == {n: found.owner for n, found in self.reference.pages.items()}

    @invariant()
    def every_figure_is_equal(self):
        sites, rows = self.space.counters()
        assert {
            site: SiteCounters(*row) for site, row in zip(sites, rows.tolist(), strict=True)
        } == self.reference.counters()
        assert {
            special: self.space.totals(special).live_bytes for special in Special
        } == self.reference.special_bytes()
        assert self.space.census() == self.reference.census()
        assert self.space.live_bytes == sum(
            found.live_bytes for site, found in self.reference.counters().items() if site.kind != "file"
        )

    @invariant()
    def regions_are_what_is_live(self):
        for site, found in self.reference.counters().items():
            regions = self.space.regions(site)
            assert sum(region.length_bytes for region in regions) == found.live_bytes
            assert regions == sorted(regions, key=lambda region: region.start)


AgainstPages.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestAgainstPages = AgainstPages.TestCase
