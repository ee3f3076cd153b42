"""Common peaks of heap and mappings, from the events of the programs."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.kernel.address_space_events import AddressSpaceEvent, Syscall
from bpfleakd.kernel.process_slots import ProgramBreak
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.table.regions import Special
from bpfleakd.tracing.address_space.address_maps import AddressMaps

PID, TID = 4_711, 4_712
PAGE = 4096
_PRIVATE_ANONYMOUS = 0x22
_READ_WRITE = 3

MODULE = "bpfleakd.tracing.address_space.address_maps"


def no_arena(_pid: int, _size_bytes: int, _stack_id: int) -> bool:
    return False


class Program:
    """A simulated program that allocates and maps, and the resulting events."""

    def __init__(self) -> None:
        self.maps = AddressMaps(lambda _event: False, no_arena)
        self.maps.follow(PID, ())
        self.now_ns = 1_000
        self.heap = self.heap_peak = self.peak = 0
        self.mapped: list[tuple[int, int]] = []
        self._next = 0x10000

    def allocate(self, size: int) -> None:
        self.heap += size
        self.heap_peak = max(self.heap_peak, self.heap)
        self._note()

    def free(self, size: int) -> None:
        self.heap -= min(size, self.heap)

    def map(self, pages: int) -> None:
        self._report(Syscall.MMAP, (0, pages * PAGE, _READ_WRITE, _PRIVATE_ANONYMOUS, 0, 0), self._next)
        self.mapped.append((self._next, pages))
        self._next += (pages + 1) * PAGE
        self._note()

    def unmap(self) -> None:
        if self.mapped:
            start, pages = self.mapped.pop()
            self._report(Syscall.MUNMAP, (start, pages * PAGE, 0, 0, 0, 0), 0, at_entry=True)

    def told_peak(self) -> int:
        self.now_ns += 1
        return self.maps.peak_live_bytes(PID, self.heap_peak, self.now_ns)

    def _note(self) -> None:
        self.peak = max(self.peak, self.heap + PAGE * sum(pages for _start, pages in self.mapped))

    def _report(self, syscall: Syscall, arguments: tuple, result: int, at_entry: bool = False) -> None:
        self.now_ns += 1
        event = AddressSpaceEvent(
            self.now_ns, 1, arguments, result, self.heap_peak, PID, TID, syscall, at_entry, False
        )
        self.heap_peak = self.heap
        self.maps.apply([event])


_STEPS = st.lists(
    st.tuples(st.sampled_from(["allocate", "free", "map", "unmap", "look"]), st.integers(1, 50))
)


@given(steps=_STEPS)
def test_the_peak_is_exact(steps: list[tuple[str, int]]) -> None:
    """Whatever happens in whatever order, and whenever it is looked at."""
    program = Program()
    for step, number in steps:
        match step:
            case "allocate":
                program.allocate(number * 1000)
            case "free":
                program.free(number * 1000)
            case "map":
                program.map(number)
            case "unmap":
                program.unmap()
            case "look":
                assert program.told_peak() == program.peak
    assert program.told_peak() == program.peak


def test_peaks_at_different_times_do_not_add_up() -> None:
    """A mapping that is gone when the heap grows."""
    program = Program()
    program.map(10)
    program.unmap()
    program.allocate(7 * PAGE)
    assert program.told_peak() == 10 * PAGE


def test_a_peak_read_before_a_report_is_not_taken_for_one_after_it() -> None:
    """The heap was at its most while the mapping was there, and was read then; the report came meanwhile."""
    program = Program()
    program.allocate(7 * PAGE)
    program.free(7 * PAGE)
    read_ns, read_peak = program.now_ns, program.heap_peak
    program.map(10)
    assert program.maps.peak_live_bytes(PID, read_peak, read_ns) == 7 * PAGE
    assert program.told_peak() == 10 * PAGE


def test_a_process_that_is_not_followed() -> None:
    """All that is known is the heap."""
    assert AddressMaps(lambda _event: False, no_arena).peak_live_bytes(PID, 23, 1) == 23


HEAP = Mapping(0x100000, 0x121000, 0, "00:00", 0, "[heap]", True, True, False)
ARENA = 0x7F0000000000


def followed(in_allocator: bool = False) -> AddressMaps:
    maps = AddressMaps(lambda _event: in_allocator, no_arena)
    maps.follow(PID, [HEAP])
    return maps


def an_event(syscall: Syscall, result: int, *arguments: int, inside: bool = True) -> AddressSpaceEvent:
    padded = (*arguments, *[0] * (6 - len(arguments)))
    return AddressSpaceEvent(1, 0 if inside else 23, padded, result, 0, PID, TID, syscall, False, inside)


def test_heap_since_the_attach():
    """Memory that malloc has mapped since: not earlier memory, nor the program's own mappings."""
    maps = followed()
    maps.apply(
        [
            an_event(Syscall.BRK, HEAP.end + 4 * PAGE),
            an_event(Syscall.MMAP, ARENA, 0, 64 * PAGE, 0, _PRIVATE_ANONYMOUS),
            an_event(Syscall.MPROTECT, 0, ARENA, 8 * PAGE, _READ_WRITE),
            an_event(Syscall.MMAP, ARENA + 64 * PAGE, 0, PAGE, _READ_WRITE, _PRIVATE_ANONYMOUS, inside=False),
            an_event(Syscall.BRK, HEAP.end + 5 * PAGE, inside=False),
        ]
    )
    heap = (HEAP.end, HEAP.end + 4 * PAGE), (ARENA, ARENA + 64 * PAGE)
    assert maps.heap_since_attach(PID) == list(heap)
    # free returns some of it: the stack identifies the caller.
    maps.apply([an_event(Syscall.BRK, HEAP.end + 3 * PAGE, inside=False)])
    assert maps.heap_since_attach(PID) == [(HEAP.end, HEAP.end + 3 * PAGE), heap[1]]


class ProgramWithBreak:
    """Moves of the program break as the programs report (the program's own) or note them (malloc's)."""

    def __init__(self) -> None:
        self.noted = ProgramBreak(0, 0)
        self.maps = AddressMaps(lambda _event: False, no_arena, lambda _pid: self._taken())
        self.maps.follow(PID, [HEAP])
        self.now = self.floor = HEAP.end

    def by_malloc(self, pages: int) -> None:
        """malloc gives back only what it has taken since the program's own call."""
        self.now = max(self.floor, self.now + pages * PAGE)
        self.noted = ProgramBreak(self.now, min(self.noted.lowest or self.now, self.now))

    def by_program(self, pages: int) -> None:
        before, self.now = self.noted.now, self.now + pages * PAGE
        self.floor, self.noted = self.now, ProgramBreak(self.now, 0)
        self.maps.apply([an_event(Syscall.BRK, self.now, self.now, before, inside=False)])

    def ranges(self) -> list[tuple[int, int, object]]:
        self.maps.take_breaks()
        space = self.maps.map_of(PID)
        assert space is not None
        return list(space.ranges())

    def _taken(self) -> ProgramBreak | None:
        taken, self.noted = self.noted, replace(self.noted, lowest=0)
        return replace(taken, lowest=taken.lowest or taken.now) if taken.now else None


_MOVES = st.lists(st.tuples(st.sampled_from(["malloc", "sbrk", "look"]), st.integers(-3, 9)))


@given(moves=_MOVES)
@example(moves=[("sbrk", 5), ("malloc", 1), ("malloc", 5)])
@example(moves=[("malloc", 5), ("malloc", -3), ("sbrk", 2)])
def test_memory_below_the_break_is_whose_call_has_moved_it(moves: list[tuple[str, int]]) -> None:
    """malloc's calls are not reported, and the map is looked at whenever: it is right each time."""
    program = ProgramWithBreak()
    owners: list[object] = []
    for who, pages in moves:
        match who:
            case "malloc":
                before = program.now
                program.by_malloc(pages)
                moved = (program.now - before) // PAGE
                owners = owners[:moved] if moved < 0 else owners + [Special.ALLOCATOR] * moved
            case "sbrk":
                program.by_program(abs(pages))
                owners += [SiteKey(AllocationKind.MMAP, 23)] * abs(pages)
            case "look":
                program.ranges()
    found = [
        owner
        for start, end, owner in program.ranges()
        for _page in range(max(start, HEAP.end), end, PAGE)
    ]
    assert found == owners


def test_a_heap_that_begins_after_the_attach() -> None:
    """The first move of the break only tells where it is."""
    noted: list[ProgramBreak] = [ProgramBreak(HEAP.end, HEAP.start)]
    maps = AddressMaps(lambda _event: False, no_arena, lambda _pid: noted[-1])
    maps.follow(PID, ())
    maps.take_breaks()
    assert maps.heap_since_attach(PID) == [(HEAP.start, HEAP.end)]
    assert maps.checkpoint(PID, 0, stale=False).program_break == HEAP.end


def test_a_break_that_no_kernel_would_allow_changes_nothing() -> None:
    """A process can jump to where its C library makes calls, with anything in its registers."""
    maps = AddressMaps(lambda _event: False, no_arena, lambda _pid: ProgramBreak(1 << 62, 1 << 62))
    maps.follow(PID, [HEAP])
    maps.take_breaks()
    assert maps.is_broken(PID)
    assert maps.heap_since_attach(PID) == []


@pytest.mark.parametrize(("pause_s", "comparisons"), [(0, 9), (10, 1)])
def test_a_break_that_moves_during_a_comparison_shows_no_difference(
    monkeypatch: pytest.MonkeyPatch, pause_s: int, comparisons: int
) -> None:
    """What /proc says may be of before or after the move. It is not read more often for that."""
    noted = [ProgramBreak(HEAP.end, HEAP.end)]
    monkeypatch.setattr(f"{MODULE}._COMPARING_PAUSE_NS", pause_s * 1_000_000_000)
    monkeypatch.setattr(f"{MODULE}._COMPARING_PAUSE", 0)
    maps = AddressMaps(lambda _event: False, no_arena, lambda _pid: noted[-1])
    maps.follow(PID, [HEAP])

    def read(_pid: int) -> list[Mapping]:
        before = noted[-1].now
        noted.append(ProgramBreak(before + PAGE, before + PAGE))
        return [replace(HEAP, end=before)]

    monkeypatch.setattr(f"{MODULE}.read_mappings", read)
    assert not any(maps.lacks_calls(PID) for _ in range(9))
    assert len(noted) == 1 + comparisons
    assert maps.heap_since_attach(PID) == [(HEAP.end, noted[-1].now)]


def test_heap_of_calls_that_were_under_way_at_the_attach():
    """Known by their stacks only: the block that such a call returns is in no table, and no heap is known."""
    maps = followed(in_allocator=True)
    maps.apply([an_event(Syscall.BRK, HEAP.end - PAGE, inside=False)])
    maps.apply([an_event(Syscall.BRK, HEAP.end, inside=True)])
    assert maps.heap_since_attach(PID) == [(HEAP.end - PAGE, HEAP.end)]
    maps.apply([an_event(Syscall.BRK, HEAP.end + PAGE, inside=False)])
    assert maps.heap_since_attach(PID) == []


def test_heap_of_a_process_that_was_taken_over():
    """The earlier daemon's knowledge of such calls is lost."""
    maps = followed()
    maps.apply([an_event(Syscall.BRK, HEAP.end + PAGE)])
    later = AddressMaps(lambda _event: False, no_arena)
    later.restore(PID, maps.checkpoint(PID, 0, stale=False))
    assert maps.heap_since_attach(PID) == [(HEAP.end, HEAP.end + PAGE)]
    assert later.heap_since_attach(PID) == []
    assert later.heap_since_attach(PID + 1) == []


def test_a_storm_is_cut_off_counted_and_repaired(monkeypatch):
    """Only the slow map is cut off; its repair is postponed, and then agrees with /proc."""
    storm, calm = 23, 101
    # Each change takes a second.
    clock = iter(range(0, 10**18, 10**9))
    maps = AddressMaps(lambda _event: False, no_arena)
    monkeypatch.setattr(
        "bpfleakd.tracing.address_space.address_maps.time.thread_time_ns", lambda: next(clock)
    )
    monkeypatch.setattr(
        "bpfleakd.tracing.address_space.address_maps.time.perf_counter_ns", lambda: next(clock)
    )
    for pid in (storm, calm):
        maps.follow(pid, ())
    maps.begin_reading()

    def mapped(pid: int, number: int) -> AddressSpaceEvent:
        arguments = (0, PAGE, _READ_WRITE, _PRIVATE_ANONYMOUS, 0, 0)
        return AddressSpaceEvent(
            number, number, arguments, 2 * number * PAGE, 0, pid, pid, Syscall.MMAP, False, False
        )

    maps.apply([mapped(storm, number) for number in range(1, 24)])
    assert maps.skipped(storm) == 22
    assert maps.is_broken(storm)
    maps.apply([mapped(calm, number) for number in range(1, 2)])
    assert (maps.skipped(calm), maps.is_broken(calm)) == (0, False)

    real = [Mapping(2 * PAGE, 3 * PAGE, 0, "00:00", 0, "", True, True, False)]
    monkeypatch.setattr(f"{MODULE}.read_mappings", lambda _pid: real)
    maps.repair(storm, 22)
    assert not maps.is_broken(storm)
    space = maps.map_of(storm)
    assert space is not None
    assert len(space) == 1
    # Another repair has to wait for some times as long as this one took.
    maps.repair(storm, 23)
    assert maps.is_broken(storm)


def test_arenas_of_python_are_a_kind_of_their_own() -> None:
    """By size and stack, the interpreter's layout decides whether memory is for objects."""
    asked = []

    def is_arena(pid: int, size_bytes: int, stack_id: int) -> bool:
        asked.append((pid, size_bytes, stack_id))
        return size_bytes == 1 << 20

    maps = AddressMaps(lambda _event: False, is_arena)
    maps.follow(PID, ())
    for number, size_bytes in enumerate((1 << 20, 2 << 20)):
        arguments = (0, size_bytes, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        event = AddressSpaceEvent(
            1, 23, arguments, (number + 1) << 32, 0, PID, TID, Syscall.MMAP, False, False, number
        )
        maps.apply([event])
    space = maps.map_of(PID)
    assert space is not None
    assert asked == [(PID, 1 << 20, 23), (PID, 2 << 20, 23)]
    assert space.totals(SiteKey(AllocationKind.PYTHON, 23)).live_bytes == 1 << 20
    assert space.totals(SiteKey(AllocationKind.MMAP, 23)).live_bytes == 2 << 20


@pytest.mark.parametrize(
    ("call", "arguments", "result"),
    [
        (Syscall.MMAP, (0, 1 << 62, 3, 0x22, 0, 0), 0x10000),
        (Syscall.MMAP, (0, PAGE, 3, 0x22, 0, 0), 1 << 62),
        (Syscall.MREMAP, (0x10000, PAGE, 1 << 62, 1, 0, 0), 0x10000),
        (Syscall.MPROTECT, (0x10000, 1 << 62, 3, 0, 0, 0), 0),
        (Syscall.MADVISE, (1 << 63, PAGE, 4, 0, 0, 0), 0),
        (Syscall.BRK, (1 << 62, 0, 0, 0, 0, 0), 1 << 62),
    ],
    ids=str,
)
def test_a_call_that_no_kernel_would_allow_changes_nothing(call, arguments, result):
    """A process can jump to where its C library makes calls, with anything in its registers."""
    program = Program()
    program.map(3)
    before = program.told_peak()

    program._report(call, arguments, result)

    assert program.maps.is_broken(PID)
    assert program.told_peak() == before
