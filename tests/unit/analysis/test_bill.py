"""The bill adds up, and says where growth goes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bpfleakd.analysis.bill import AllocatorBooks, GoHeap, UnreadHeap, bill, growth_summary, is_comparable
from bpfleakd.analysis.memory_parts import Figures, Part
from bpfleakd.model.address_space import BillKind, BillLine, MemoryUse
from bpfleakd.model.runtimes.managed import AreaKind, ManagedHeap, RuntimeArea
from bpfleakd.model.site import AllocationKind
from bpfleakd.model.verdict import Verdict

MIB = 1 << 20


def part(use: MemoryUse, mib: int, kind: AllocationKind | None = None, swap: int = 0) -> Part:
    return Part(use, kind, Figures(mib * MIB, (mib - swap) * MIB, 0, swap * MIB))


PARTS = [
    part(MemoryUse.HEAP, 100, swap=7),
    part(MemoryUse.MMAP, 20),
    part(MemoryUse.COMMIT, 50, AllocationKind.COMMIT),
    part(MemoryUse.THREAD_STACKS, 3),
    part(MemoryUse.FILES, 11),
]
BOOKS = AllocatorBooks(4, 5 * MIB, 60 * MIB, 40 * MIB, 20 * MIB, 0)
MANAGED = ManagedHeap("dotnet", Verdict.STEADY, "", 30 * MIB, 2, 1, 0.0)


@pytest.mark.parametrize("books", [None, BOOKS, AllocatorBooks(1, 900 * MIB, 900 * MIB, 0, 0, 3)])
@pytest.mark.parametrize("managed", [None, MANAGED])
def test_the_lines_add_up(books, managed):
    """Also where books say more than there is."""
    lines = bill(PARTS, books, managed)

    assert sum(line.bytes for line in lines) == 184 * MIB
    assert [line.bytes for line in lines] == sorted((line.bytes for line in lines), reverse=True)


def test_each_line_has_its_part():
    lines = {line.kind: line.bytes // MIB for line in bill(PARTS, BOOKS, MANAGED)}

    assert lines == {
        BillKind.HEAP_FREE: 60,
        BillKind.HEAP_LIVE: 45,
        BillKind.MANAGED_LIVE: 30,
        BillKind.MANAGED_FREE: 20,
        BillKind.MMAP: 15,
        BillKind.FILE: 11,
        BillKind.STACK: 3,
    }


def test_the_largest_pieces_of_shared_memory_are_named():
    """By name; a name that a program chose is made printable and cut to a line."""
    names = {"/memfd:cache\x1b[2J": 9, "/SYSV0000beef": 8, "/dev/zero": 7, "/dev/shm/small": 1}
    shared = [replace(part(MemoryUse.SHARED, mib), name=name) for name, mib in names.items()]
    shared.append(replace(part(MemoryUse.SHARED, 2, swap=1), name="/memfd:cache\x1b[2J"))
    (line,) = (line for line in bill([*PARTS, *shared], BOOKS, None) if line.kind is BillKind.SHARED)

    assert line.bytes == 27 * MIB
    assert line.note == (
        "memfd:cache\\x1b[2J 11.0 MiB, System V segment 0x0000beef 8.00 MiB, shared anonymous memory 7.00 MiB"
    )
    (line,) = bill([replace(part(MemoryUse.SHARED, 1), name="/memfd:" + 300 * "x")], None, None)
    assert len(line.note) < 60


def test_the_metaspace_is_no_room_of_the_heap():
    """It is a separate line, though the runtime allocates it like the heap."""
    areas = (
        RuntimeArea(AreaKind.METASPACE, 3 * MIB, 8 * MIB),
        RuntimeArea(AreaKind.CODE_CACHE, MIB, 2 * MIB),
    )
    lines = {line.kind: line for line in bill(PARTS, BOOKS, replace(MANAGED, areas=areas))}

    assert lines[BillKind.METASPACE].bytes == 8 * MIB
    assert lines[BillKind.METASPACE].note == "3.00 MiB of 8.00 MiB in use"
    assert lines[BillKind.MANAGED_FREE].bytes == 12 * MIB
    assert sum(line.bytes for line in lines.values()) == 184 * MIB


def test_what_a_runtime_tells_later_is_no_growth():
    """A bill without it cannot be compared with one that has it."""
    without, with_it = bill(PARTS, BOOKS, None), bill(PARTS, BOOKS, MANAGED)

    assert not is_comparable(without, with_it)
    assert is_comparable(with_it, with_it)
    assert is_comparable(with_it, without)


def test_the_growth_of_free_memory_is_no_leak():
    first = bill(PARTS, AllocatorBooks(4, 0, 20 * MIB, 0, 0, 0), None)
    grown = [part(MemoryUse.HEAP, 150), *PARTS[1:]]

    lines = bill(grown, AllocatorBooks(4, 0, 65 * MIB, 45 * MIB, 20 * MIB, 0), None, first, 10.0)

    growth = {line.kind: line.growth_bytes_per_s for line in lines}
    assert growth[BillKind.HEAP_FREE] == 4.5 * MIB
    assert growth[BillKind.HEAP_LIVE] == 0.5 * MIB
    summary = growth_summary(lines)
    assert summary is not None
    assert summary.startswith("memory grows +5.00 MiB/s: 90% of it is freed memory that the allocator keeps")
    assert "malloc_trim would return 45.0 MiB" in summary


def test_what_does_not_grow_has_no_sentence():
    assert growth_summary([BillLine(BillKind.MMAP, MIB, None)]) is None
    assert growth_summary([BillLine(BillKind.MMAP, MIB, 1e6), BillLine(BillKind.FILE, 0, -1e6)]) is None


def test_tcmalloc_is_told_by_its_own_figures():
    """What it had mapped before the attach is not a mapping of the program."""
    parts = [part(MemoryUse.HEAP, 20), part(MemoryUse.MMAP, 70)]
    books = AllocatorBooks(0, 0, 0, 0, 0, 0, tcmalloc_bytes=80 * MIB, tcmalloc_free_bytes=30 * MIB)
    lines = {line.kind: line for line in bill(parts, books, None)}
    assert lines[BillKind.HEAP_LIVE].bytes == 50 * MIB
    assert lines[BillKind.HEAP_FREE].bytes == 30 * MIB
    assert lines[BillKind.MMAP].bytes == 10 * MIB
    assert "tcmalloc" in lines[BillKind.HEAP_FREE].note


def test_books_that_cannot_be_read():
    """Free memory of such a heap cannot be distinguished from blocks, and its mappings from before the attach
    are unknown.
    """
    parts = [*PARTS, part(MemoryUse.MMAP, 17, AllocationKind.MMAP)]
    lines = {line.kind: line for line in bill(parts, None, None, unread=UnreadHeap(("jemalloc",), 9 * MIB))}

    assert sum(line.bytes for line in lines.values()) == 201 * MIB
    assert lines[BillKind.HEAP_LIVE].bytes == 100 * MIB
    assert lines[BillKind.HEAP_LIVE].note == (
        "including freed memory that jemalloc keeps: its books cannot be read; at least 9.00 MiB are live"
    )
    assert lines[BillKind.UNKNOWN].bytes == 20 * MIB
    assert lines[BillKind.UNKNOWN].note.startswith("mapped before the attach: by jemalloc")
    assert lines[BillKind.MMAP].bytes == 67 * MIB, "what is known to be the program's"


def test_garbage_of_go_is_not_live():
    """What its profile does not call live is garbage or free; the C heap beside it has its own books."""
    books = AllocatorBooks(1, 0, 10 * MIB, 8 * MIB, 2 * MIB, 0)

    def lines_of(heap_mib, go, first=()):
        found = bill(
            [part(MemoryUse.HEAP, heap_mib), part(MemoryUse.FILES, 3)], books, None, first, 10.0, go=go
        )
        assert sum(line.bytes for line in found) == (heap_mib + 3) * MIB
        return found

    first = lines_of(100, GoHeap(80 * MIB, 40 * MIB))
    lines = lines_of(150, GoHeap(130 * MIB, 40 * MIB), first)

    sizes = {line.kind: line.bytes // MIB for line in lines}
    assert (sizes[BillKind.MANAGED_LIVE], sizes[BillKind.MANAGED_FREE]) == (40, 90)
    assert (sizes[BillKind.HEAP_LIVE], sizes[BillKind.HEAP_FREE]) == (10, 10)
    summary = growth_summary(lines)
    assert summary is not None
    assert summary.endswith("100% of it is garbage and free room of the managed heap")


def test_a_heap_of_go_without_a_profile_is_not_called_live():
    """glibc's books beside it do not cover it."""
    first = bill([part(MemoryUse.HEAP, 60)], BOOKS, None, go=GoHeap(40 * MIB, None))
    lines = bill([part(MemoryUse.HEAP, 90)], BOOKS, None, first, 10.0, go=GoHeap(70 * MIB, None))

    summary = growth_summary(lines)
    assert summary is not None
    assert "live blocks" not in summary
    assert "including garbage and free memory of Go's" in summary


def test_a_heap_of_go_that_nobody_is_known_to_have_mapped():
    """It looks like any mapping, and is its heap all the same; another runtime is not counted twice."""
    lines = {line.kind: line for line in bill(PARTS, None, MANAGED, go=GoHeap(110 * MIB, 20 * MIB))}

    assert sum(line.bytes for line in lines.values()) == 184 * MIB
    assert BillKind.HEAP_LIVE not in lines
    assert lines[BillKind.MANAGED_LIVE].bytes == 50 * MIB
    assert lines[BillKind.MANAGED_FREE].bytes == 110 * MIB


def test_python_memory_stands_in_one_line():
    """Arenas from before the attach do not change the line when more of the heap lies in later ones."""
    found = []
    for since_attach in (0, 6, 12):
        parts = [part(MemoryUse.MMAP, 40), part(MemoryUse.MMAP, since_attach, AllocationKind.PYTHON)]
        heap = replace(MANAGED, runtime="CPython", is_read=True, live_bytes=(30 + since_attach) * MIB)
        found.append({line.kind: line.bytes // MIB for line in bill(parts, None, heap)})

    assert found == [{BillKind.PYTHON: 30 + more, BillKind.MMAP: 10} for more in (0, 6, 12)]


def test_tables_of_go_are_no_live_blocks():
    """What Go's runtime maps for itself is the same, mapped before the attach or since."""
    for before in (0, 3, 9):
        parts = [part(MemoryUse.HEAP, 49 - before), part(MemoryUse.MMAP, 11 + before)]
        lines = bill(parts, None, None, go=GoHeap(40 * MIB, 25 * MIB, is_alone=True))
        assert {line.kind: line.bytes // MIB for line in lines} == {
            BillKind.MANAGED_LIVE: 25,
            BillKind.MANAGED_FREE: 15,
            BillKind.MMAP: 20,
        }
