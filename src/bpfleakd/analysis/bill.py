"""The bill of a process' memory: each resident byte counts in one line, by its use.

Heap memory is divided into live blocks and freed memory by the allocator's own books, where they can be read.
The lines add up to the resident and swapped memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from bpfleakd.analysis.memory_parts import Part
from bpfleakd.model.address_space import BillKind, BillLine, MemoryUse
from bpfleakd.model.runtimes.managed import AreaKind, ManagedHeap
from bpfleakd.model.site import AllocationKind
from bpfleakd.printable import printable, shortened
from bpfleakd.units import human_bytes, human_rate

_KINDS = {
    MemoryUse.HEAP: BillKind.HEAP_LIVE,
    MemoryUse.MMAP: BillKind.MMAP,
    MemoryUse.COMMIT: BillKind.MMAP,
    MemoryUse.THREAD_STACKS: BillKind.STACK,
    MemoryUse.FILES: BillKind.FILE,
    MemoryUse.VDSO: BillKind.FILE,
    MemoryUse.JIT: BillKind.JIT,
    MemoryUse.SHARED: BillKind.SHARED,
    MemoryUse.RESERVED: BillKind.UNKNOWN,
}
# Smaller growth is irrelevant.
_GROWTH_MIN_BYTES_PER_S = 1024.0
_WORDS = {
    BillKind.HEAP_LIVE: "live blocks of the heap",
    BillKind.HEAP_FREE: "freed memory that the allocator keeps",
    BillKind.MANAGED_LIVE: "live objects of the managed heap",
    BillKind.MANAGED_FREE: "garbage and free room of the managed heap",
    BillKind.METASPACE: "classes of Java",
    BillKind.PYTHON: "objects of Python",
    BillKind.MMAP: "anonymous mappings",
    BillKind.STACK: "thread stacks",
    BillKind.FILE: "mapped files",
    BillKind.JIT: "code compiled at run time",
    BillKind.SHARED: "shared memory",
    BillKind.UNKNOWN: "unexplained memory",
}
# The code cache is all of the code that Java compiles at run time.
_AREA_LINES = {AreaKind.METASPACE: BillKind.METASPACE, AreaKind.CODE_CACHE: BillKind.JIT}
# Pieces of shared memory that are named, and with how much of their names.
_SHARED_MAX, _NAME_CHARS = 3, 40
_NO_PROFILE = "including garbage and free memory of Go's: its heap profile tells nothing"
_OF_RUNTIMES = (BillKind.MANAGED_LIVE, BillKind.METASPACE)


class AllocatorBooks(Struct, frozen=True):
    """Figures of the allocator's own lists: bytes in memory or swapped out.

    `mapped_bytes` are large blocks in separate mappings. `trimmable_bytes` is what malloc_trim(3) would
    return, `pinned_bytes` the freed memory in pages with live blocks. `left_out` counts the lists and chunks
    that are missing. `tcmalloc_bytes` is what tcmalloc's page heap has committed, `tcmalloc_free_bytes` the
    free part of it.
    """

    arenas: int
    mapped_bytes: int
    free_bytes: int
    trimmable_bytes: int
    pinned_bytes: int
    left_out: int
    tcmalloc_bytes: int = 0
    tcmalloc_free_bytes: int = 0


class UnreadHeap(Struct, frozen=True):
    """Allocators whose books cannot be read, by name.

    `recorded_bytes` are in live blocks allocated since the attach; 0: unknown.
    """

    allocators: tuple[str, ...]
    recorded_bytes: int = 0


class GoHeap(Struct, frozen=True):
    """Go's heap, and the part that the last collection left alive, from its profile; None: unknown.

    `resident_bytes` are in memory or swapped out. `is_alone`: the program has no other allocator.
    """

    resident_bytes: int
    live_bytes: int | None
    is_alone: bool = False


def bill(
    parts: Sequence[Part],
    books: AllocatorBooks | None,
    managed: ManagedHeap | None,
    first: Sequence[BillLine] = (),
    elapsed_s: float = 0.0,
    unread: UnreadHeap | None = None,
    go: GoHeap | None = None,
) -> tuple[BillLine, ...]:
    """The lines, most bytes first. `first` is the bill of `elapsed_s` ago: without it, growth is None."""
    sums = dict.fromkeys(BillKind, 0)
    for part in parts:
        kind = BillKind.PYTHON if part.kind is AllocationKind.PYTHON else _KINDS[part.use]
        sums[kind] += part.figures.resident_bytes + part.figures.swap_bytes
    notes: dict[BillKind, str] = {BillKind.SHARED: _shared_words(parts)}
    go_live_bytes = _move_go(sums, go) if go is not None else 0
    if books is not None:
        large = min(books.mapped_bytes, sums[BillKind.MMAP])
        _move(sums, BillKind.MMAP, BillKind.HEAP_LIVE, large)
        if books.tcmalloc_bytes:
            # tcmalloc's memory from before the attach looks like any other mapping.
            heap_bytes = max(0, books.tcmalloc_bytes - sums[BillKind.HEAP_LIVE])
            _move(sums, BillKind.MMAP, BillKind.HEAP_LIVE, heap_bytes)
        _move(sums, BillKind.HEAP_LIVE, BillKind.HEAP_FREE, books.free_bytes + books.tcmalloc_free_bytes)
        notes[BillKind.HEAP_FREE] = _free_words(books)
    elif sums[BillKind.HEAP_LIVE]:
        notes[BillKind.HEAP_LIVE] = "including freed memory: the allocator's lists cannot be read"
    areas = {area.kind: area for area in managed.areas} if managed is not None else {}
    metaspace = areas.get(AreaKind.METASPACE)
    metaspace_bytes = min(metaspace.committed_bytes, sums[BillKind.MMAP]) if metaspace is not None else 0
    _move(sums, BillKind.MMAP, BillKind.METASPACE, metaspace_bytes)
    for area in areas.values():
        notes[_AREA_LINES[area.kind]] = (
            f"{human_bytes(area.used_bytes)} of {human_bytes(area.committed_bytes)} in use"
        )
    if managed is not None and managed.live_bytes is not None and managed.is_read:
        # Of Python: arenas since the attach are known, those from before it by the objects in all of them.
        _move(sums, BillKind.MMAP, BillKind.PYTHON, max(0, managed.live_bytes - sums[BillKind.PYTHON]))
    elif managed is not None and managed.live_bytes is not None:
        _move(sums, BillKind.MMAP, BillKind.MANAGED_LIVE, managed.live_bytes)
        committed = sum(
            part.figures.resident_bytes + part.figures.swap_bytes
            for part in parts
            if part.use is MemoryUse.COMMIT
        )
        free_bytes = committed - (sums[BillKind.MANAGED_LIVE] - go_live_bytes) - metaspace_bytes
        _move(sums, BillKind.MMAP, BillKind.MANAGED_FREE, max(0, free_bytes))
    notes |= _go_notes(go) if go is not None else {}
    if unread is not None:
        # A mapping from before the attach belongs to the allocator or the program.
        _move(sums, BillKind.MMAP, BillKind.UNKNOWN, _untracked_bytes(parts))
        of_go = f"; {_NO_PROFILE}" if notes.get(BillKind.HEAP_LIVE) == _NO_PROFILE else ""
        notes[BillKind.HEAP_LIVE] = _unread_words(unread) + of_go
        who = " or ".join(unread.allocators)
        notes[BillKind.UNKNOWN] = f"mapped before the attach: by {who}, whose books cannot be read, or others"
    return _lines(sums, notes, first, elapsed_s)


def _go_notes(go: GoHeap) -> dict[BillKind, str]:
    if go.live_bytes is None:
        return {BillKind.HEAP_LIVE: _NO_PROFILE} if go.resident_bytes else {}
    notes = {
        BillKind.MANAGED_LIVE: "Go's heap as of its last collection, estimated from its heap profile",
        BillKind.MANAGED_FREE: "garbage, free spans and stacks in Go's heap",
    }
    if go.is_alone:
        notes[BillKind.MMAP] = "including the tables of Go's runtime"
    return notes


def _lines(
    sums: Mapping[BillKind, int], notes: Mapping[BillKind, str], first: Sequence[BillLine], elapsed_s: float
) -> tuple[BillLine, ...]:
    before = {line.kind: line.bytes for line in first}
    lines = []
    for kind, size_bytes in sums.items():
        if size_bytes or before.get(kind):
            grown_bytes = size_bytes - before.get(kind, 0)
            growth = round(grown_bytes / elapsed_s, 1) if first and elapsed_s > 0 else None
            lines.append(BillLine(kind, size_bytes, growth, notes.get(kind, "")))
    return tuple(sorted(lines, key=lambda line: -line.bytes))


def is_comparable(first: Sequence[BillLine], lines: Sequence[BillLine]) -> bool:
    """Whether growth may be counted from a bill: only if no runtime began to report its memory since then."""
    return {line.kind for line in lines if line.kind in _OF_RUNTIMES} <= {line.kind for line in first}


def growth_summary(lines: Sequence[BillLine]) -> str | None:
    """A sentence on the lines that grow; None if the process does not grow."""
    rises = [line for line in lines if (line.growth_bytes_per_s or 0) > 0]
    total = sum(line.growth_bytes_per_s or 0 for line in lines)
    if total < _GROWTH_MIN_BYTES_PER_S or not rises:
        return None
    largest = max(rises, key=lambda line: line.growth_bytes_per_s or 0)
    share = min(1.0, (largest.growth_bytes_per_s or 0) / total)
    what = _WORDS[largest.kind]
    if largest.kind is BillKind.HEAP_LIVE and largest.note:
        # The growth is not all live memory.
        what = f"the heap, {largest.note}"
    words = f"memory grows {human_rate(total)}: {share:.0%} of it is {what}"
    if largest.kind is BillKind.HEAP_FREE:
        words += f", not a leak ({largest.note})"
    return words


def _move_go(sums: dict[BillKind, int], go: GoHeap) -> int:
    """Divide Go's heap into live memory and the rest; returns the live bytes."""
    if go.live_bytes is None:
        return 0
    # Memory from before the attach counts as mapped.
    left_bytes = go.resident_bytes
    for source in (BillKind.HEAP_LIVE, BillKind.MMAP):
        moved_bytes = min(left_bytes, sums[source])
        _move(sums, source, BillKind.MANAGED_FREE, moved_bytes)
        left_bytes -= moved_bytes
    _move(sums, BillKind.MANAGED_FREE, BillKind.MANAGED_LIVE, go.live_bytes)
    if go.is_alone:
        # What the runtime has mapped for itself: before the attach or since, that is the same.
        _move(sums, BillKind.HEAP_LIVE, BillKind.MMAP, sums[BillKind.HEAP_LIVE])
    return sums[BillKind.MANAGED_LIVE]


def _move(sums: dict[BillKind, int], source: BillKind, target: BillKind, size_bytes: int) -> None:
    moved = min(size_bytes, sums[source])
    sums[source] -= moved
    sums[target] += moved


def _untracked_bytes(parts: Sequence[Part]) -> int:
    """The bytes of anonymous mappings with no known owner."""
    return sum(
        part.figures.resident_bytes + part.figures.swap_bytes
        for part in parts
        if part.use is MemoryUse.MMAP and part.kind is None
    )


def _shared_words(parts: Sequence[Part]) -> str:
    """The largest pieces of shared memory, by name."""
    sizes: Counter[str] = Counter()
    for part in parts:
        if part.use is MemoryUse.SHARED:
            sizes[part.name] += part.figures.resident_bytes + part.figures.swap_bytes
    largest = [(name, size_bytes) for name, size_bytes in sizes.most_common(_SHARED_MAX) if size_bytes]
    return ", ".join(f"{_shared_name(name)} {human_bytes(size_bytes)}" for name, size_bytes in largest)


def _shared_name(path: str) -> str:
    if path.startswith("/SYSV"):
        return f"System V segment 0x{printable(path.removeprefix('/SYSV'))}"
    if path == "/dev/zero":
        return "shared anonymous memory"
    return shortened(printable(path.removeprefix("/")), _NAME_CHARS)


def _unread_words(unread: UnreadHeap) -> str:
    words = f"including freed memory that {' and '.join(unread.allocators)} keeps: its books cannot be read"
    if not unread.recorded_bytes:
        return words
    return f"{words}; at least {human_bytes(unread.recorded_bytes)} are live"


def _free_words(books: AllocatorBooks) -> str:
    if books.tcmalloc_bytes:
        return (
            "the page heap of tcmalloc; what its caches hold counts as live; "
            "MallocExtension::ReleaseFreeMemory returns it"
        )
    arenas = f"{books.arenas:,} arena{'' if books.arenas == 1 else 's'} of glibc"
    words = (
        f"{arenas}: malloc_trim would return {human_bytes(books.trimmable_bytes)}, "
        f"fragmentation holds {human_bytes(books.pinned_bytes)}"
    )
    if books.arenas > 8 and books.trimmable_bytes + books.pinned_bytes > books.arenas << 20:
        words += "; MALLOC_ARENA_MAX=2 keeps less"
    if books.left_out:
        words += f"; it may be more: {books.left_out:,} lists or chunks changed meanwhile, or were too many"
    return words
