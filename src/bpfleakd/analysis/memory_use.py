"""The use of a mapping: by its name, by its owner, or by its appearance if the owner is unknown.

Rules:
  - Named mappings are classified by name: [heap], [stack], files, memory files (memfd, shm, System V). A
    memory file that is executable anywhere, and .NET's doublemapper, are JIT. Shared mappings of files in
    tmpfs or hugetlbfs, by their device, are memory files. Anonymous huge pages have a name and no file.
  - Anonymous memory is classified by its owner: the allocator's is heap, that of a call site of kind commit,
    mmap or thread-stack has that use. Without access it is reserved, executable it is JIT.
  - Mappings from before the attach have no owner, except arenas of glibc (memory_parts.py, with_arenas). Two
    uses are recognised by appearance, which is a guess: a thread's stack, which is memory above a page
    without access, with a stack pointer in its first 8 MiB; and a library's variables (.bss), directly behind
    a writable private mapping of a file. Everything else is mmap: also heaps of other allocators and managed
    heaps from before the attach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bpfleakd.model.address_space import MappingUsage, MemoryUse
from bpfleakd.model.code.mapping import HUGE_PAGES
from bpfleakd.model.site import AllocationKind
from bpfleakd.table.regions import Owner, Special, kind_of

_STACK_BYTES = 8 << 20
_MEMORY_FILES = ("/memfd:", "/dev/shm/", "/SYSV", "/dev/zero", "[anon_shmem:")
_DOUBLE_MAPPER = "/memfd:doublemapper"
# What glibc 2.39 and later write with glibc.mem.decorate_maps.
_DECORATIONS = {
    "[anon: glibc: malloc": MemoryUse.HEAP,
    "[anon: glibc: pthread stack": MemoryUse.THREAD_STACKS,
}

# The end of the range with this appearance, and the use.
Looks = tuple[int, MemoryUse]


def executable_memory_files(usages: Iterable[MappingUsage]) -> frozenset[tuple[str, int]]:
    """Device and inode of the memory files that are executable somewhere."""
    return frozenset(
        _file(usage)
        for usage in usages
        if usage.mapping.executable and usage.mapping.path.startswith(_MEMORY_FILES)
    )


def named_use(
    usage: MappingUsage,
    executable_files: frozenset[tuple[str, int]],
    memory_devices: frozenset[str] = frozenset(),
) -> MemoryUse | None:
    """The use of a mapping according to its name; None for anonymous memory.

    Files of `memory_devices` are memory.
    """
    path = usage.mapping.path
    if path == "[heap]":
        return MemoryUse.HEAP
    if path.startswith("[stack") or "gd" in usage.flags:
        return MemoryUse.THREAD_STACKS
    if path.startswith(_MEMORY_FILES):
        is_jit = path.startswith(_DOUBLE_MAPPER) or _file(usage) in executable_files
        return MemoryUse.JIT if is_jit else MemoryUse.SHARED
    for decoration, use in _DECORATIONS.items():
        if path.startswith(decoration):
            return use
    if not path or path.startswith("[anon:"):
        return None
    if usage.shared and (path.startswith(HUGE_PAGES) or usage.mapping.device in memory_devices):
        return MemoryUse.SHARED
    if path.startswith(HUGE_PAGES):
        return None
    return MemoryUse.VDSO if path.startswith("[") else MemoryUse.FILES


def owned_use(owner: Owner | None, usage: MappingUsage, looks_like: MemoryUse | None) -> MemoryUse:
    """The use of a part of an anonymous mapping; the owner is None if it is unknown."""
    kind = kind_of(owner)
    if owner is Special.ALLOCATOR:
        return MemoryUse.HEAP
    if kind is AllocationKind.THREAD_STACK:
        return MemoryUse.THREAD_STACKS
    if looks_like is not None and kind is None:
        return looks_like
    if _is_reserved(usage):
        return MemoryUse.RESERVED
    if usage.mapping.executable:
        return MemoryUse.JIT
    is_committed = kind is AllocationKind.COMMIT or owner is Special.DISCARDED
    return MemoryUse.COMMIT if is_committed else MemoryUse.MMAP


def looks_of(
    usage: MappingUsage, before: MappingUsage | None, stack_pointers: Sequence[int]
) -> Looks | None:
    """The appearance of an anonymous mapping, given the mapping before it."""
    start, end = usage.mapping.start, usage.mapping.end
    if before is None or before.mapping.end != start or _is_reserved(usage):
        return None
    if before.mapping.path.startswith("/") and before.mapping.writable and not before.shared:
        return end, MemoryUse.FILES
    stack_end = min(end, start + _STACK_BYTES)
    if _is_reserved(before) and any(start <= pointer < stack_end for pointer in stack_pointers):
        return stack_end, MemoryUse.THREAD_STACKS
    return None


def _file(usage: MappingUsage) -> tuple[str, int]:
    return usage.mapping.device, usage.mapping.inode


def _is_reserved(usage: MappingUsage) -> bool:
    mapping = usage.mapping
    is_accessible = mapping.readable or mapping.writable or mapping.executable
    return not is_accessible and (not mapping.path or mapping.path.startswith("[anon:"))
