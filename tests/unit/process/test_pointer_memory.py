"""Which mappings are read for pointers, and how much of stacks."""

from __future__ import annotations

import numpy as np

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.memory import MemoryPart
from bpfleakd.process.pointer_memory import PointerMemory, pointer_memory
from bpfleakd.process.stopper import ThreadRegisters

LIBC = "/lib/libc.so.6"


def a_mapping(start: int, end: int, path: str = "", rights: str = "rw-p") -> Mapping:
    readable, writable, executable = (right != "-" for right in rights[:3])
    return Mapping(
        start, end, 0, "00:00", 0, path, readable, writable, executable, shared=rights.endswith("s")
    )


def a_thread(stack_pointer: int, thread_pointer: int = 0, tid: int = 23) -> ThreadRegisters:
    return ThreadRegisters(tid, stack_pointer, thread_pointer, np.empty(0, np.uint64))


def parts(mappings: list[Mapping], *threads: ThreadRegisters) -> list[tuple[int, int]]:
    found = pointer_memory(mappings, threads, [LIBC])
    return sorted((memory.part.start, memory.part.end) for memory in found)


def test_what_can_hold_pointers() -> None:
    """Private memory that can be read, also if it cannot be written now; shared memory if it can be."""
    mappings = [
        a_mapping(0x1000, 0x2000, "/bin/shop", "r-xp"),
        a_mapping(0x2000, 0x3000, "/dev/shm/x", "rw-s"),
        a_mapping(0x3000, 0x4000, "/etc/passwd", "r--s"),
        a_mapping(0x4000, 0x5000, "", "---p"),
        a_mapping(0x5000, 0x6000, "[vvar]", "r--p"),
        a_mapping(0x6000, 0x7000, "[heap]"),
    ]
    assert parts(mappings) == [(0x1000, 0x2000), (0x2000, 0x3000), (0x6000, 0x7000)]


def test_where_allocators_keep_notes() -> None:
    """In anonymous memory and in their own variables, and not in stacks or in other files."""
    mappings = [
        a_mapping(0x1000, 0x2000, "/bin/shop"),
        a_mapping(0x2000, 0x3000),
        a_mapping(0x3000, 0x4000, "[heap]"),
        a_mapping(0x4000, 0x5000, LIBC),
        a_mapping(0x5000, 0x6000),
    ]
    found = pointer_memory(mappings, [a_thread(0x5800)], [LIBC])
    assert {memory.part.start: memory.allocators for memory in found} == {
        0x1000: False,
        0x2000: True,
        0x3000: True,
        0x4000: True,
        0x5000: False,
    }


def test_stacks_first_and_large_parts_last() -> None:
    """The memory that changes most is read while there is time."""
    mappings = [a_mapping(0x1000, 0x9000), a_mapping(0xA000, 0xB000), a_mapping(0x10000, 0x90000, "[stack]")]
    found = pointer_memory(mappings, [a_thread(0x80000)], [])
    assert [memory.part.end for memory in found] == [0x90000, 0xB000, 0x9000]
    assert found[0] == PointerMemory(MemoryPart(0x80000 - 128, 0x90000), False, False, True)


def test_the_stack_of_a_thread() -> None:
    """From the red zone up, if there is a guard below it and the thread's own block above."""
    guard, stack = a_mapping(0x1000, 0x2000, "", "---p"), a_mapping(0x2000, 0xA000)
    assert parts([guard, stack], a_thread(0x8004, 0x9F00)) == [(0x8000 - 128, 0xA000)]
    assert parts([guard, stack], a_thread(0x2010, 0x9F00)) == [(0x2000, 0xA000)]


def test_stacks_that_are_taken_whole() -> None:
    """Without a guard, of a coroutine, of several threads: memory below may be in use."""
    guard, stack = a_mapping(0x1000, 0x2000, "", "---p"), a_mapping(0x2000, 0xA000)
    whole = [(0x2000, 0xA000)]
    assert parts([stack], a_thread(0x8000, 0x9F00)) == whole
    assert parts([a_mapping(0x0, 0x1000, "", "---p"), stack], a_thread(0x8000, 0x9F00)) == whole
    assert parts([guard, stack], a_thread(0x8000, 0xF0000)) == whole
    assert parts([guard, stack], a_thread(0x8000, 0x7000)) == whole
    assert parts([guard, stack], a_thread(0x8000, 0x9F00), a_thread(0x6000, 0x6800, 29)) == whole
    assert parts([guard, stack], a_thread(0x8000, 0x9F00), a_thread(0xF0000, 0x6800, 29)) == whole
    assert parts([a_mapping(0x2000, 0xA000, "[stack]")]) == whole
