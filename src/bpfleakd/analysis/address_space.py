"""What an address space is used for, and what explains the resident memory.

Rules:
  - Named mappings are told by their names: [heap], [stack], files, memory files (memfd, shm, System V). A
    memory file that is executable anywhere, .NET's doublemapper, and executable anonymous memory are JIT.
  - Other anonymous memory belongs to who mapped it, where that was seen: the allocator's is heap, a call
    site's of kind commit, mmap or thread-stack is that. The kernel joins neighbours; what they have in
    memory is then counted by pages, or shared out by size where pages cannot be counted.
  - What was there before the attach has no owner. Three uses are recognised by their looks:
    · an arena of glibc: MAP_NORESERVE, begins at a multiple of 64 MiB, continued without access up to the next;
    · a thread's stack: memory above a page without access, with a stack pointer in its first 8 MiB;
    · a library's variables (.bss): directly behind a writable private mapping of a file.
    Everything else is mmap: also heaps of other allocators and managed heaps from before the attach.
  - The shares add up to the resident bytes, always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bpfleakd.model import AllocationKind, MappingUsage, MemoryShares, MemoryUse, UseSummary
from bpfleakd.table.regions import Owner, Special, kind_of

__all__ = ["Part", "classify", "shares", "summarise"]

# malloc/arena.c: HEAP_MAX_SIZE is twice DEFAULT_MMAP_THRESHOLD_MAX.
_ARENA_BYTES = 64 << 20
_STACK_BYTES = 8 << 20
_MEMORY_FILES = ("/memfd:", "/dev/shm/", "/SYSV", "/dev/zero", "[anon_shmem:")
_DOUBLE_MAPPER = "/memfd:doublemapper"
# With glibc.mem.decorate_maps, since glibc 2.39.
_NAMED = {
    "[anon: glibc: malloc": MemoryUse.HEAP,
    "[anon: glibc: calloc": MemoryUse.HEAP,
    "[anon: glibc: pthread stack": MemoryUse.THREAD_STACKS,
}

# A range with its owner; start and end are addresses. None: nobody's that is known.
_Range = tuple[int, int, Owner | None]
# Resident and swapped bytes of a range, None if they cannot be known.
_Counter = Callable[[int, int], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Part:
    """Memory of one use and one kind of call sites (None: not tracked). `estimated` was shared out by size."""

    use: MemoryUse
    kind: AllocationKind | None
    virtual_bytes: int
    resident_bytes: int
    private_dirty_bytes: int
    swap_bytes: int
    estimated: bool = False


def classify(
    usages: Sequence[MappingUsage],
    owners: Iterable[tuple[int, int, Owner]] = (),
    stack_pointers: Sequence[int] = (),
    count: _Counter = lambda _start, _end: None,
) -> list[Part]:
    """The parts of an address space. `usages` and `owners` (start, end, owner) are in order of addresses."""
    executable = {_file(usage) for usage in usages if usage.mapping.executable and _is_memory_file(usage)}
    remaining = iter(owners)
    current = next(remaining, None)
    parts: list[Part] = []
    hint: tuple[int, MemoryUse] | None = None
    for index, usage in enumerate(usages):
        mapping = usage.mapping
        if mapping.path == "[vsyscall]":  # the kernel's, at an address that no process owns
            continue
        ranges: list[_Range] = []
        while current is not None and current[0] < mapping.end:
            if current[1] > mapping.start:
                ranges.append((max(current[0], mapping.start), min(current[1], mapping.end), current[2]))
            if current[1] > mapping.end:
                break
            current = next(remaining, None)
        use = _named_use(usage, executable)
        if use is not None:
            parts.append(_whole(usage, use, None))
            continue
        before = usages[index - 1] if index else None
        after = usages[index + 1] if index + 1 < len(usages) else None
        hint = _hint(usage, before, after, hint, stack_pointers)
        parts += _anonymous(usage, _pieces(mapping.start, mapping.end, ranges, hint, usage), count)
    return parts


def summarise(parts: Iterable[Part], first: Sequence[UseSummary] = ()) -> tuple[UseSummary, ...]:
    """The sums by use, in the order of MemoryUse. `first` is the summary at the attach, for growth.

    A use that was there at the attach and is no more has zeroes. Without a `first` there is no growth.
    """
    sums: dict[MemoryUse, list[int]] = {}
    for part in parts:
        figures = (1, part.virtual_bytes, part.resident_bytes, part.private_dirty_bytes, part.swap_bytes)
        known = sums.setdefault(part.use, [0] * len(figures))
        sums[part.use] = [a + b for a, b in zip(known, figures, strict=True)]
    before = {summary.use: summary for summary in first}
    summaries = []
    for use in MemoryUse:
        if use not in sums and use not in before:
            continue
        regions, virtual, resident, dirty, swap = sums.get(use, [0] * 5)
        old = before.get(use)
        virtual_before, resident_before = (old.virtual_bytes, old.resident_bytes) if old else (0, 0)
        growth = (virtual - virtual_before, resident - resident_before) if first else (0, 0)
        summaries.append(UseSummary(use, regions, virtual, resident, dirty, swap, *growth))
    return tuple(summaries)


def shares(parts: Iterable[Part], live_heap_bytes: int) -> MemoryShares:
    """What explains the resident memory, given what is live in the heap.

    Live blocks may be in untracked anonymous memory, where another allocator than glibc's got it before the
    attach, and not in memory at all, if they were never written to.
    """
    resident_bytes = heap = unknown = mmap = commit = 0
    for part in parts:
        resident_bytes += part.resident_bytes
        if part.use is MemoryUse.HEAP:
            heap += part.resident_bytes
        elif part.kind is AllocationKind.MMAP:
            mmap += part.resident_bytes
        elif part.kind is AllocationKind.COMMIT:
            commit += part.resident_bytes
        elif part.use in (MemoryUse.MMAP, MemoryUse.COMMIT):
            unknown += part.resident_bytes
    tracked_heap = min(live_heap_bytes, heap + unknown)
    retained = max(0, heap - live_heap_bytes)
    explained = tracked_heap + mmap + commit + retained
    return MemoryShares(
        tracked_heap_bytes=tracked_heap,
        tracked_mmap_bytes=mmap,
        tracked_commit_bytes=commit,
        allocator_retained_bytes=retained,
        rest_bytes=resident_bytes - explained,
        explained_share=round(explained / resident_bytes, 4) if resident_bytes else 0.0,
    )


def _file(usage: MappingUsage) -> tuple[str, int]:
    return usage.mapping.device, usage.mapping.inode


def _is_memory_file(usage: MappingUsage) -> bool:
    return usage.mapping.path.startswith(_MEMORY_FILES)


def _named_use(usage: MappingUsage, executable_files: set[tuple[str, int]]) -> MemoryUse | None:
    """The use of a mapping that its name tells; None for anonymous memory."""
    path = usage.mapping.path
    if path == "[heap]":
        return MemoryUse.HEAP
    if path.startswith("[stack") or "gd" in usage.flags:
        return MemoryUse.THREAD_STACKS
    if _is_memory_file(usage):
        is_jit = path.startswith(_DOUBLE_MAPPER) or _file(usage) in executable_files
        return MemoryUse.JIT if is_jit else MemoryUse.SHARED
    for name, use in _NAMED.items():
        if path.startswith(name):
            return use
    if not path or path.startswith("[anon:"):
        return None
    return MemoryUse.KERNEL if path.startswith("[") else MemoryUse.FILES


def _is_reserved(usage: MappingUsage) -> bool:
    mapping = usage.mapping
    return not (mapping.readable or mapping.writable or mapping.executable or mapping.path)


def _hint(
    usage: MappingUsage,
    before: MappingUsage | None,
    after: MappingUsage | None,
    hint_before: tuple[int, MemoryUse] | None,
    stack_pointers: Sequence[int],
) -> tuple[int, MemoryUse] | None:
    """Up to which address an anonymous mapping without an owner looks like something, and what."""
    start, end = usage.mapping.start, usage.mapping.end
    if before is not None and before.mapping.end != start:
        before = None
    if _is_reserved(usage):
        continues = before is not None and hint_before is not None and hint_before[0] > start
        return hint_before if continues else None
    if "nr" in usage.flags and start % _ARENA_BYTES == 0:
        arena_end = start + _ARENA_BYTES
        rest = after is not None and _is_reserved(after) and after.mapping.start == end
        if end >= arena_end or (rest and after.mapping.end >= arena_end):
            return max(arena_end, end & -_ARENA_BYTES), MemoryUse.HEAP
    if before is None:
        return None
    if before.mapping.path.startswith("/") and before.mapping.writable and not before.shared:
        return end, MemoryUse.FILES
    stack_end = min(end, start + _STACK_BYTES)
    if _is_reserved(before) and any(start <= pointer < stack_end for pointer in stack_pointers):
        return stack_end, MemoryUse.THREAD_STACKS
    return None


def _pieces(
    start: int,
    end: int,
    ranges: Sequence[_Range],
    hint: tuple[int, MemoryUse] | None,
    usage: MappingUsage,
) -> list[tuple[int, int, MemoryUse, AllocationKind | None]]:
    """An anonymous mapping cut where its use or its kind changes."""
    pieces: list[tuple[int, int, MemoryUse, AllocationKind | None]] = []
    for range_start, range_end, owner in _without_gaps(start, end, ranges, hint[0] if hint else end):
        known = kind_of(owner) is not None or owner is Special.ALLOCATOR
        looks_like = hint[1] if hint and not known and range_start < hint[0] else None
        use = looks_like or _owned_use(owner, usage)
        kind = kind_of(owner)
        if pieces and pieces[-1][2:] == (use, kind):
            pieces[-1] = (pieces[-1][0], range_end, use, kind)
        else:
            pieces.append((range_start, range_end, use, kind))
    return pieces


def _without_gaps(start: int, end: int, ranges: Sequence[_Range], cut: int) -> Iterator[_Range]:
    """All from `start` to `end`: the ranges, None's between them, and none of them across `cut`."""
    for range_start, range_end, owner in (*ranges, (end, end, None)):
        for piece_start, piece_end, piece_owner in (
            (start, range_start, None),
            (range_start, range_end, owner),
        ):
            if piece_start < cut < piece_end:
                yield piece_start, cut, piece_owner
                piece_start = cut
            if piece_start < piece_end:
                yield piece_start, piece_end, piece_owner
        start = range_end


def _owned_use(owner: Owner | None, usage: MappingUsage) -> MemoryUse:
    kind = kind_of(owner)
    if owner is Special.ALLOCATOR:
        return MemoryUse.HEAP
    if kind is AllocationKind.THREAD_STACK:
        return MemoryUse.THREAD_STACKS
    if _is_reserved(usage):
        return MemoryUse.RESERVED
    if usage.mapping.executable:
        return MemoryUse.JIT
    is_committed = kind is AllocationKind.COMMIT or owner is Special.DISCARDED
    return MemoryUse.COMMIT if is_committed else MemoryUse.MMAP


def _whole(usage: MappingUsage, use: MemoryUse, kind: AllocationKind | None) -> Part:
    return Part(
        use,
        kind,
        usage.mapping.end - usage.mapping.start,
        usage.resident_bytes,
        usage.private_dirty_bytes,
        usage.swap_bytes,
    )


def _anonymous(
    usage: MappingUsage,
    pieces: Sequence[tuple[int, int, MemoryUse, AllocationKind | None]],
    count: _Counter,
) -> list[Part]:
    if len(pieces) == 1:
        return [_whole(usage, *pieces[0][2:])]
    counted = [count(start, end) for start, end, _use, _kind in pieces] if usage.resident_bytes else []
    size_bytes = usage.mapping.end - usage.mapping.start
    estimated = None in counted or not counted
    if estimated:
        wanted = [(end - start) * usage.resident_bytes // size_bytes for start, end, *_ in pieces]
        swapped = [(end - start) * usage.swap_bytes // size_bytes for start, end, *_ in pieces]
    else:
        wanted = [found[0] for found in counted if found]
        swapped = [found[1] for found in counted if found]
    resident = _adding_up(wanted, usage.resident_bytes)
    dirty = _adding_up([min(part, usage.private_dirty_bytes) for part in resident], usage.private_dirty_bytes)
    swap = _adding_up(swapped, usage.swap_bytes)
    return [
        Part(use, kind, end - start, *figures, estimated=estimated and bool(usage.resident_bytes))
        for (start, end, use, kind), *figures in zip(pieces, resident, dirty, swap, strict=True)
    ]


def _adding_up(figures: Sequence[int], total: int) -> list[int]:
    """The figures, the largest ones changed so that they add up: pages come and go while they are counted."""
    result = list(figures)
    for index in sorted(range(len(result)), key=lambda i: -result[i]):
        difference = total - sum(result)
        if difference == 0:
            break
        result[index] = max(0, result[index] + difference)
    return result
