"""Divides the memory of a process by use and by the call sites that explain it.

Rules:
  - Every byte of every mapping is in one part, with one use (memory_use.py) and one kind of owner.
  - The kernel joins neighbours that were mapped by different callers, and reports resident bytes for the
    whole mapping. If a mapping has several parts, their pages are counted; if that is impossible, resident
    bytes are divided by size and marked as estimated.
  - The parts of a mapping always add up to it, and the shares to the resident bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import astuple

from bpfleakd.analysis.memory_use import Looks, executable_memory_files, looks_of, named_use, owned_use
from bpfleakd.model.address_space import MappingUsage, MemoryShares, MemoryUse, UseSummary
from bpfleakd.model.site import AllocationKind
from bpfleakd.ranges import outside
from bpfleakd.table.regions import Owner, Special, kind_of

# Owners that say as little as none.
_UNKNOWN = (Special.BASELINE, Special.UNRECORDED)
# A range of addresses with its owner; None: unknown.
_Range = tuple[int, int, Owner | None]
_Piece = tuple[int, int, MemoryUse, AllocationKind | None]
# Returns the resident and swapped bytes between two addresses, None if they are unknown.
_Counter = Callable[[int, int], tuple[int, int] | None]


class Figures(Struct, frozen=True):
    """Bytes of a part of an address space."""

    virtual_bytes: int
    resident_bytes: int
    private_dirty_bytes: int
    swap_bytes: int


class Part(Struct, frozen=True):
    """Memory of one use and of one kind of call sites (None: not tracked). Shared memory has a `name`."""

    use: MemoryUse
    kind: AllocationKind | None
    figures: Figures
    estimated: bool = False
    name: str = ""


def classify(
    usages: Sequence[MappingUsage],
    owners: Iterable[tuple[int, int, Owner]] = (),
    stack_pointers: Sequence[int] = (),
    count: _Counter = lambda _start, _end: None,
    memory_devices: frozenset[str] = frozenset(),
) -> list[Part]:
    """The parts of an address space. `usages` and `owners` (start, end, owner) are in order of addresses.

    `memory_devices` are the file systems whose files are memory, as the mappings name them.
    """
    # [vsyscall] is the kernel's, at an address that no process owns.
    usages = [usage for usage in usages if usage.mapping.path != "[vsyscall]"]
    executable = executable_memory_files(usages)
    parts: list[Part] = []
    before = [None, *usages][: len(usages)]
    for usage, previous, ranges in zip(usages, before, _by_mapping(usages, owners), strict=True):
        use = named_use(usage, executable, memory_devices)
        if use is not None:
            name = usage.mapping.path if use is MemoryUse.SHARED else ""
            parts.append(Part(use, None, _figures_of(usage), name=name))
        else:
            looks = looks_of(usage, previous, stack_pointers)
            parts += _parts(usage, _pieces(usage, ranges, looks), count)
    return parts


def with_arenas(
    owners: Iterable[tuple[int, int, Owner]], arenas: Sequence[tuple[int, int]]
) -> list[tuple[int, int, Owner]]:
    """The owners, and the allocator as that of arenas from before the attach. All in order of addresses.

    The kernel may have joined an arena with other memory.
    """
    known = [one for one in owners if one[2] not in _UNKNOWN]
    unowned = outside(arenas, ((start, end) for start, end, _owner in known))
    found = [(start, end, Special.ALLOCATOR) for start, end in unowned]
    return sorted([*known, *found], key=lambda one: one[0])


def summarise(parts: Iterable[Part], first: Sequence[UseSummary] = ()) -> tuple[UseSummary, ...]:
    """The sums by use, in the order of MemoryUse. `first` is the summary at the attach, for growth.

    A use that existed at the attach and is gone has zeroes. Growth is 0 without `first`.
    """
    by_use: dict[MemoryUse, list[Figures]] = {}
    for part in parts:
        by_use.setdefault(part.use, []).append(part.figures)
    before = {summary.use: (summary.virtual_bytes, summary.resident_bytes) for summary in first}
    summaries = []
    for use in MemoryUse:
        if use in by_use or use in before:
            summed = [sum(column) for column in zip(*map(astuple, by_use.get(use, ())), strict=True)]
            virtual_bytes, resident_bytes, private_dirty_bytes, swap_bytes = summed or (0,) * 4
            was = before.get(use, (0, 0)) if first else (virtual_bytes, resident_bytes)
            summaries.append(
                UseSummary(
                    use=use,
                    regions=len(by_use.get(use, ())),
                    virtual_bytes=virtual_bytes,
                    resident_bytes=resident_bytes,
                    private_dirty_bytes=private_dirty_bytes,
                    swap_bytes=swap_bytes,
                    virtual_growth_bytes=virtual_bytes - was[0],
                    resident_growth_bytes=resident_bytes - was[1],
                )
            )
    return tuple(summaries)


def shares(parts: Iterable[Part], live_heap_bytes: int) -> MemoryShares:
    """What explains the resident memory, given the live bytes of the heap.

    Live blocks may be in anonymous memory that is not tracked, if an allocator other than glibc's mapped it
    before the attach, and outside of memory if they were never written to.
    """
    resident_bytes = heap = untracked = mmap = commit = 0
    for part in parts:
        size_bytes = part.figures.resident_bytes
        resident_bytes += size_bytes
        if part.use is MemoryUse.HEAP:
            heap += size_bytes
        elif part.kind in (AllocationKind.MMAP, AllocationKind.PYTHON):
            mmap += size_bytes
        elif part.kind is AllocationKind.COMMIT:
            commit += size_bytes
        elif part.use is MemoryUse.MMAP:
            untracked += size_bytes
    tracked_heap = min(live_heap_bytes, heap + untracked)
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


def _by_mapping(
    usages: Sequence[MappingUsage], owners: Iterable[tuple[int, int, Owner]]
) -> Iterator[list[_Range]]:
    """Yield the ranges of each mapping; the owner of the gaps between those of `owners` is None."""
    remaining = iter(owners)
    owned = next(remaining, None)
    for usage in usages:
        ranges: list[_Range] = []
        covered_to, end = usage.mapping.start, usage.mapping.end
        while owned is not None and owned[0] < end:
            if owned[1] > covered_to:
                if owned[0] > covered_to:
                    ranges.append((covered_to, owned[0], None))
                ranges.append((max(owned[0], covered_to), min(owned[1], end), owned[2]))
                covered_to = ranges[-1][1]
            if owned[1] > end:
                break
            owned = next(remaining, None)
        if covered_to < end:
            ranges.append((covered_to, end, None))
        yield ranges


def _pieces(usage: MappingUsage, ranges: Sequence[_Range], looks: Looks | None) -> list[_Piece]:
    """An anonymous mapping cut where its use or the kind of its owners changes."""
    looks_end, looks_like = looks or (usage.mapping.start, None)
    pieces: list[_Piece] = []
    for start, end, owner in ranges:
        kind = kind_of(owner)
        cut = min(max(start, looks_end), end)
        for piece_start, piece_end, hint in ((start, cut, looks_like), (cut, end, None)):
            use = owned_use(owner, usage, hint)
            if piece_start == piece_end:
                continue
            if pieces and pieces[-1][2:] == (use, kind):
                pieces[-1] = (pieces[-1][0], piece_end, use, kind)
            else:
                pieces.append((piece_start, piece_end, use, kind))
    return pieces


def _parts(usage: MappingUsage, pieces: Sequence[_Piece], count: _Counter) -> list[Part]:
    whole = _figures_of(usage)
    if len(pieces) == 1:
        return [Part(*pieces[0][2:], whole)]
    sizes = [end - start for start, end, _use, _kind in pieces]
    counted: list[tuple[int, int] | None] = [(0, 0)] * len(pieces)
    if whole.resident_bytes or whole.swap_bytes:
        counted = [count(start, end) for start, end, _use, _kind in pieces]
    estimated = None in counted
    by_size = [
        (size * whole.resident_bytes // sum(sizes), size * whole.swap_bytes // sum(sizes)) for size in sizes
    ]
    found = by_size if estimated else [pair for pair in counted if pair is not None]
    resident = _adding_up([pair[0] for pair in found], whole.resident_bytes)
    dirty = _adding_up([min(part, whole.private_dirty_bytes) for part in resident], whole.private_dirty_bytes)
    swap = _adding_up([pair[1] for pair in found], whole.swap_bytes)
    return [
        Part(use, kind, Figures(*figures), estimated)
        for (_start, _end, use, kind), *figures in zip(pieces, sizes, resident, dirty, swap, strict=True)
    ]


def _adding_up(figures: Sequence[int], total: int) -> list[int]:
    """The figures, of which the largest are adjusted to add up: pages come and go while they are counted."""
    result = list(figures)
    for index in sorted(range(len(result)), key=lambda i: -result[i]):
        difference = total - sum(result)
        if difference == 0:
            break
        result[index] = max(0, result[index] + difference)
    return result


def _figures_of(usage: MappingUsage) -> Figures:
    return Figures(
        usage.mapping.end - usage.mapping.start,
        usage.resident_bytes,
        usage.private_dirty_bytes,
        usage.swap_bytes,
    )
