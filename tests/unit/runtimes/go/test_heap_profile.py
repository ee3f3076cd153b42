"""The runtime's heap profile, laid out as Go does it, in this process' own memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.runtimes.go import bucket_list
from bpfleakd.runtimes.go.heap_profile import GoHeapProfile
from bpfleakd.runtimes.go.memory import ProcessMemory

from .memory_image import Arena, own_memory

FLUSHED = 1


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    with own_memory() as memory:
        yield memory


class Program:
    """The variables of a runtime and the buckets of its profile."""

    def __init__(self, memory: ProcessMemory, counters: int = 4, room_bytes: int = 1 << 16) -> None:
        self.arena = Arena(room_bytes)
        self.counters = counters
        self.head = self.arena.words([0])
        self.cycle = self.arena.words([FLUSHED])
        self.rate = self.arena.words([524_288])
        self.records: list[int] = []
        self.profile = GoHeapProfile(memory, counters, (self.head, self.cycle, self.rate))
        self._newest = 0

    def add(self, stack: list[int], size: int, allocs: int, frees: int, kind: int = 1) -> int:
        """A bucket at the head of the list; returns its address."""
        active = [allocs, frees, allocs * size, frees * size][: self.counters]
        address = self.arena.words([0, self._newest, kind, 0, size, len(stack), *stack, *active])
        self.records.append(address + 48 + 8 * len(stack))
        self._newest = address
        Arena.set(self.head, address)
        return address

    def set(self, bucket: int, size: int, allocs: int, frees: int) -> None:
        """The counters of a bucket, by the order of adding."""
        for index, value in enumerate([allocs, frees, allocs * size, frees * size][: self.counters]):
            Arena.set(self.records[bucket] + 8 * index, value)

    def collect(self, number: int) -> None:
        """The runtime has published another cycle."""
        Arena.set(self.cycle, number << 1 | FLUSHED, 4)


@pytest.mark.parametrize("counters", [4, 2], ids=["with bytes", "of 1.27"])
def test_what_is_in_the_buckets(memory: ProcessMemory, counters: int) -> None:
    """Two sizes of one stack are two buckets of one site, as in pprof."""
    program = Program(memory, counters)
    program.add([10, 20, 30], 4096, 7, 2)
    program.add([10, 20, 30], 64, 1, 1)
    program.add([11, 20], 1 << 20, 3, 0)
    read = program.profile.read()
    assert read is not None
    assert [program.profile.stack(one) for one in read.stack_ids] == [(11, 20), (10, 20, 30)]
    figures = sorted(zip(read.sizes.tolist(), read.allocs.tolist(), read.frees.tolist(), strict=True))
    assert figures == [(64, 1, 1), (4096, 7, 2), (1 << 20, 3, 0)]
    assert read.rate_bytes == 524_288
    assert program.profile.is_trustworthy


def test_nothing_is_read_where_nothing_was_collected(memory: ProcessMemory) -> None:
    """runtime.GC publishes once more when it has swept, so that a cycle is read twice and not again."""
    program = Program(memory)
    program.add([1], 100, 1, 0)
    assert program.profile.read() is not None
    assert program.profile.read() is not None
    assert program.profile.read() is None
    program.collect(1)
    assert program.profile.read() is not None


def test_a_cycle_that_is_not_published_is_not_read(memory: ProcessMemory) -> None:
    """Between the end of marking and the flush the profile mixes two cycles."""
    program = Program(memory)
    program.add([1], 100, 1, 0)
    program.profile.read(), program.profile.read()
    Arena.set(program.cycle, 1 << 1, 4)
    assert program.profile.read() is None
    program.collect(1)
    assert program.profile.read() is not None


def test_new_buckets_and_changed_counters(memory: ProcessMemory) -> None:
    """Buckets stay where they are: new ones are walked, of the others the counters are read."""
    program = Program(memory)
    program.add([1], 100, 5, 0)
    program.profile.read()
    program.set(0, 100, 9, 3)
    program.add([2], 50, 1, 0)
    program.collect(1)
    read = program.profile.read()
    assert read is not None
    assert read.allocs.tolist() == [9, 1]
    assert read.frees.tolist() == [3, 0]


def test_a_contradiction_is_left_as_it_was(memory: ProcessMemory) -> None:
    """A counter read during a change: bytes that are not blocks times size."""
    program = Program(memory)
    for stack in range(100):
        program.add([stack + 1], 100, 5, 0)
    program.profile.read()
    Arena.set(program.records[3] + 16, 501)
    program.collect(1)
    read = program.profile.read()
    assert read is not None
    assert read.allocs.tolist() == [5] * 100
    assert program.profile.damaged == 1
    assert program.profile.is_trustworthy


def test_another_layout_is_not_trusted(memory: ProcessMemory) -> None:
    """The records of one release, read as those of another."""
    program = Program(memory, counters=2)
    for stack in range(50):
        program.add([stack + 1], 100, 5, 2)
    wrong = GoHeapProfile(memory, 4, (program.head, program.cycle, program.rate))
    wrong.buckets()
    assert not wrong.is_trustworthy


def test_a_list_that_bites_its_tail(memory: ProcessMemory) -> None:
    """The walk ends at a bucket that it has seen."""
    program = Program(memory)
    first = program.add([1], 10, 1, 0)
    last = program.add([2], 10, 1, 0)
    Arena.set(first + 8, last)
    read = program.profile.read()
    assert read is not None
    assert len(read.sizes) == 2


@pytest.mark.parametrize("address", [1, 4095, 1 << 40, (1 << 64) - 8, 12345])
def test_a_pointer_to_nowhere(memory: ProcessMemory, address: int) -> None:
    """It ends the list, and is counted."""
    program = Program(memory)
    first = program.add([1], 10, 1, 0)
    Arena.set(first + 8, address)
    read = program.profile.read()
    assert read is not None
    assert len(read.sizes) == 1


@pytest.mark.parametrize(
    ("word", "value"),
    [(2, 2), (5, 1025), (5, (1 << 64) - 1), (5, 1 << 13)],
    ids=["kind", "deep", "-1", "out"],
)
def test_what_the_list_goes_through_is_checked(memory: ProcessMemory, word: int, value: int) -> None:
    """The walk ends at the first invalid bucket, and keeps what it read before."""
    program = Program(memory)
    buckets = [program.add([stack + 1], 10, 1, 0) for stack in range(9)]
    Arena.set(buckets[4] + 8 * word, value)
    read = program.profile.read()
    assert read is not None
    assert [program.profile.stack(one) for one in read.stack_ids] == [(9,), (8,), (7,), (6,)]
    assert program.profile.damaged == 1


def test_a_link_between_two_words(memory: ProcessMemory) -> None:
    """It ends the list where it is followed, though the memory is readable."""
    program = Program(memory)
    buckets = [program.add([stack + 1], 10, 1, 0) for stack in range(9)]
    Arena.set(buckets[4] + 8, buckets[3] + 4)
    read = program.profile.read()
    assert read is not None
    assert len(read.sizes) == 5
    assert program.profile.damaged == 1


def test_buckets_that_overlap_take_no_more_than_their_memory(memory: ProcessMemory) -> None:
    """Each has 1,024 words, and begins 5 words behind the one before."""
    program = Program(memory, room_bytes=1 << 18)
    count, deep = 5_000, 1_024
    base = program.arena.words([0] * 5 * count)
    for place in range(count):
        header = [deep, base + 40 * (place + 1), 1, 0, 8]
        for word, value in enumerate(header):
            Arena.set(base + 40 * place + 8 * word, value)
    Arena.set(program.head, base)
    read = program.profile.buckets()
    # They lie in two windows at most.
    assert 0 < len(read.sizes) * deep <= 2 * bucket_list._WINDOW_WORDS
    assert program.profile.damaged > len(read.sizes)
    assert not program.profile.is_trustworthy


@pytest.mark.parametrize("steps", [2, 3, 4096])
def test_a_loop_that_is_longer_than_what_is_followed_at_once(
    memory: ProcessMemory, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Each bucket is read once, in the order of the list."""
    monkeypatch.setattr(bucket_list, "_STEPS_MAX", steps)
    program = Program(memory)
    buckets = [program.add([stack + 1], 10, 1, 0) for stack in range(7)]
    Arena.set(buckets[0] + 8, buckets[3])
    read = program.profile.read()
    assert read is not None
    assert [program.profile.stack(one) for one in read.stack_ids] == [(number,) for number in range(7, 0, -1)]
    assert program.profile.damaged == program.profile.left_out == 0


def test_what_is_kept_of_a_program_is_limited(memory: ProcessMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """In buckets and in bytes of stacks; further ones are omitted, and the omission is reported."""
    program = Program(memory)
    for stack in range(5):
        program.add([stack + 1, 7], 10, 1, 0)
    profile = GoHeapProfile(memory, 4, (program.head, program.cycle, program.rate), buckets_max=3)
    assert len(profile.buckets().sizes) == 3
    assert profile.left_out == 1
    # Stacks are counted after this many windows.
    monkeypatch.setattr(bucket_list, "_STACKS_LIMIT_BYTES", 32)
    monkeypatch.setattr(bucket_list, "_WINDOWS_MAX", 1)
    far = Program(memory, room_bytes=2 << 20)
    for stack in range(5):
        far.add([stack + 1, 7], 10, 1, 0)
        far.arena.bytes(bytes(300 << 10))
    assert len(far.profile.buckets().sizes) == 2
    assert far.profile.left_out == 1


def test_a_reading_without_time_is_continued(memory: ProcessMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next reading continues it, even without a new collection, after new buckets; nothing is lost or
    read twice.
    """
    monkeypatch.setattr(bucket_list, "_WALK_LIMIT_NS", 0)
    monkeypatch.setattr(bucket_list, "_STEPS_MAX", 10)
    program = Program(memory)

    def add(first: int, last: int) -> None:
        for stack in range(first, last):
            program.add([stack], 10, stack, 0)

    def read() -> list[int]:
        found = program.profile.read()
        return [] if found is None else sorted(found.allocs.tolist())

    add(1, 36)
    # The newest come first in the list.
    assert read() == list(range(26, 36))
    assert read() == list(range(16, 36))
    add(36, 41)
    assert read() == list(range(16, 41))
    assert read() == list(range(6, 41))
    assert read() == list(range(1, 41))
    assert read() == []
    assert program.profile.left_out == program.profile.damaged == 0


def test_stacks_are_told_apart_wherever_they_are(memory: ProcessMemory) -> None:
    """The same stack is one, read now or later; the same words in another order or number are others."""
    program = Program(memory)
    stacks = [[1], [1, 1], [0, 1], [1, 0], [2, 1], [1, 2], [0], [0, 0], []]
    for size in (10, 20):
        for stack in stacks:
            program.add(stack, size, 1, 0)
    first = program.profile.buckets()
    assert [list(program.profile.stack(one)) for one in first.stack_ids] == stacks[::-1]
    assert first.rows.tolist() == list(range(len(stacks))) * 2
    program.add([1, 2], 30, 1, 0)
    program.add([9, 9], 30, 1, 0)
    then = program.profile.buckets()
    assert then.stack_ids[:-1] == first.stack_ids
    assert program.profile.stack(then.stack_ids[-1]) == (9, 9)
    assert then.stack_ids[then.rows[-1]] == first.stack_ids[stacks[::-1].index([1, 2])]


def test_buckets_in_windows_that_are_not_whole(memory: ProcessMemory) -> None:
    """Memory begins and ends anywhere, and a deep stack is longer than one read."""
    program = Program(memory, room_bytes=1 << 20)
    stacks = [[number] * (number * 37 % 1024 + 1) for number in range(1, 60)]
    for stack in stacks:
        program.add(stack, 10, 1, 0)
    read = program.profile.buckets()
    assert program.profile.damaged == program.profile.left_out == 0
    assert [list(program.profile.stack(one)) for one in read.stack_ids] == stacks[::-1]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, (1 << 64) - 1), min_size=6, max_size=20), min_size=1, max_size=8),
    kind=st.sampled_from([1, 1, 1, 2, 77]),
    links=st.lists(st.integers(0, 7), min_size=8, max_size=8),
)
def test_any_memory(rows: list[list[int]], kind: int, links: list[int]) -> None:
    """Whatever a program has there, the reading ends and has no error."""
    with own_memory() as memory:
        program = Program(memory)
        addresses = [program.arena.words([0, 0, kind, 0, row[4], row[5] % 40, *row[6:]]) for row in rows]
        for address, link in zip(addresses, links, strict=False):
            Arena.set(address + 8, addresses[link % len(addresses)])
        Arena.set(program.head, addresses[0])
        read = program.profile.read()
        assert read is not None
        assert (read.frees <= read.allocs).all()
