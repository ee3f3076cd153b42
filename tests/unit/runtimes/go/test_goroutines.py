"""Goroutines, laid out as different releases do it, in this process' own memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.runtimes.go.goroutines import Goroutines, StartPlace
from bpfleakd.runtimes.go.memory import ProcessMemory

from .memory_image import Arena, own_memory

RUNNING, WAITING, DEAD = 2, 4, 6
RECEIVE = 14
ENTRY, GO = 0x401000, 0x402345
LAYOUTS = {
    "1.19": (144, 176, 296, 312),
    "1.21": (144, 176, 280, 296),
    "1.24": (152, 184, 288, 304),
    "1.27": (144, 176, 288, 304),
}


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    with own_memory() as memory:
        yield memory


class Program:
    """allgs of a runtime."""

    def __init__(self, memory: ProcessMemory, layout: tuple[int, int, int, int]) -> None:
        self.arena = Arena(1 << 18)
        self._layout = layout
        self._all: list[int] = []
        text = self.arena.bytes(b"chan receive")
        self.reasons = self.arena.words([0, 0] * RECEIVE + [text, len(b"chan receive")])
        self.list, self.count = self.arena.words([0]), self.arena.words([0])
        self.goroutines = Goroutines(memory, self.list, self.count, self.reasons, lambda pc: pc == ENTRY)

    def add(self, state: int, reason: int = 0, *, go: int = GO, start: int = ENTRY) -> None:
        words = [0] * 56
        state_at, reason_at, go_at, start_at = (at // 8 for at in self._layout)
        words[0], words[1] = 0xC000_0000, 0xC000_2000
        words[state_at], words[reason_at] = state, reason
        words[go_at], words[start_at] = go, start
        self._all.append(self.arena.words(words))
        Arena.set(self.list, self.arena.words(self._all))
        Arena.set(self.count, len(self._all))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_by_place_and_reason(memory: ProcessMemory, layout: tuple[int, int, int, int]) -> None:
    """The layout is found by what makes sense; the scan bit and dead ones do not count."""
    program = Program(memory, layout)
    for _ in range(3):
        program.add(WAITING, RECEIVE)
    program.add(0x1000 | RUNNING)
    program.add(DEAD, RECEIVE)
    program.add(RUNNING, go=GO + 8)
    read = program.goroutines.read()
    assert read is not None
    assert read.states == {
        StartPlace(GO, ENTRY): {"chan receive": 3, "running": 1},
        StartPlace(GO + 8, ENTRY): {"running": 1},
    }
    assert read.count == 5
    assert read.stack_bytes[StartPlace(GO, ENTRY)] == 4 * 0x2000
    assert read.left_out == 0


def test_an_unknown_layout(memory: ProcessMemory) -> None:
    """First functions at addresses without functions: nothing is reported."""
    program = Program(memory, LAYOUTS["1.24"])
    for _ in range(20):
        program.add(WAITING, RECEIVE, start=ENTRY + 1)
    assert program.goroutines.read() is None


def test_a_reason_that_is_not_known(memory: ProcessMemory) -> None:
    """A number beyond the table, or a text that cannot be read."""
    program = Program(memory, LAYOUTS["1.19"])
    program.add(WAITING, 200)
    program.add(WAITING, 3)
    read = program.goroutines.read()
    assert read is not None
    assert read.states == {StartPlace(GO, ENTRY): {"waiting": 2}}


def test_a_list_that_cannot_be_read(memory: ProcessMemory) -> None:
    """A count that is larger than all memory, a pointer to nowhere."""
    program = Program(memory, LAYOUTS["1.19"])
    program.add(WAITING, RECEIVE)
    Arena.set(program.count, 1 << 60)
    assert program.goroutines.read() is None or program.goroutines.read().left_out
    Arena.set(program.list, 4097)
    assert program.goroutines.read() is None


@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=120), count=st.integers(0, 1 << 63))
def test_any_memory(words: list[int], count: int) -> None:
    """Whatever a program has there, the reading ends and has no error."""
    with own_memory() as memory:
        program = Program(memory, LAYOUTS["1.19"])
        program.add(WAITING, RECEIVE)
        Arena.set(program.list, program.arena.words(words))
        Arena.set(program.count, count)
        program.goroutines.read()
