"""The mappings of a process that can contain pointers, and the used part of its stacks.

Below the stack pointer of a thread are only remnants of calls that have returned, except for the 128 bytes of
the red zone (System V ABI, AMD64 supplement, section 3.2.2). The bounds of a thread's stack are certain in
two cases; all other stacks, such as those of coroutines, are read whole:

  - the main thread's, which the kernel names;
  - one with memory without access below it, and the thread's own block (what %fs points to) at its upper end:
    so the C libraries make them. No other thread may have its stack or block there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.memory import MemoryPart
from bpfleakd.process.stopper import ThreadRegisters

_RED_ZONE_BYTES = 128
# Mappings of the kernel, without pointers of the process.
_SPECIAL = frozenset({"[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]", "[uprobes]"})


class PointerMemory(Struct, frozen=True):
    """A mapping to read for pointers, or the used part of a stack.

    `allocators`: an allocator may store its own data there.
    """

    part: MemoryPart
    shared: bool
    allocators: bool
    is_stack: bool = False


def pointer_memory(
    mappings: Sequence[Mapping], threads: Sequence[ThreadRegisters], allocator_paths: Collection[str]
) -> list[PointerMemory]:
    """The memory to read: stacks first, then small before large, since stacks and small parts change most.

    `threads` are the stopped ones; `allocator_paths` are the files of the allocators.
    """
    found = []
    below: Mapping | None = None
    for mapping in mappings:
        if _can_hold_pointers(mapping):
            here = [thread for thread in threads if mapping.start <= thread.stack_pointer < mapping.end]
            start = _stack_start(mapping, below, here, threads)
            allocators = not here and (not mapping.path or mapping.path in ("[heap]", *allocator_paths))
            part = MemoryPart(start, mapping.end)
            found.append(PointerMemory(part, mapping.shared, allocators, bool(here)))
        below = mapping
    return sorted(found, key=lambda memory: (not memory.is_stack, memory.part.end - memory.part.start))


def _can_hold_pointers(mapping: Mapping) -> bool:
    if not mapping.readable or mapping.path in _SPECIAL:
        return False
    return mapping.writable or not mapping.shared


def _stack_start(
    mapping: Mapping,
    below: Mapping | None,
    here: Sequence[ThreadRegisters],
    threads: Sequence[ThreadRegisters],
) -> int:
    """The first address to read: the mapping's start, or the start of the used part of a stack."""
    if len(here) != 1:
        return mapping.start
    (thread,) = here
    if mapping.path != "[stack]":
        has_guard = below is not None and below.end == mapping.start and not below.readable
        blocks = [other.tid for other in threads if mapping.start <= other.thread_pointer < mapping.end]
        if not has_guard or blocks != [thread.tid] or thread.thread_pointer < thread.stack_pointer:
            return mapping.start
    in_use = (thread.stack_pointer - _RED_ZONE_BYTES) & -8
    return max(mapping.start, in_use)
