"""The allocators that are known, and where they are in a process.

`ALLOCATORS` is the whole knowledge: adding an allocator is adding rows. The dynamic loader is probed in the
same way, to learn of libraries that come and go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bpfleakd.model import FunctionRole, Mapping

__all__ = [
    "ALLOCATORS",
    "DYNAMIC_LOADER",
    "Allocator",
    "AllocatorFunction",
    "allocators_in",
    "loader_in",
]


@dataclass(frozen=True, slots=True)
class AllocatorFunction:
    """A function to probe; without a `required` one the allocator cannot be traced at all."""

    name: str
    role: FunctionRole
    required: bool = False


@dataclass(frozen=True, slots=True)
class Allocator:
    """An allocator: the file names it comes in, and its functions."""

    name: str
    file_name: re.Pattern[str]
    functions: tuple[AllocatorFunction, ...]


ALLOCATORS = (
    Allocator(
        "glibc",
        re.compile(r"libc(-2\.\d+)?\.so(\.6)?"),
        (
            AllocatorFunction("malloc", FunctionRole.SIZE_FIRST, required=True),
            AllocatorFunction("free", FunctionRole.RELEASE, required=True),
            AllocatorFunction("calloc", FunctionRole.CALLOC, required=True),
            AllocatorFunction("realloc", FunctionRole.REALLOC, required=True),
            # reallocarray is left out: it ends in a call of realloc, which records it, and it makes that
            # call only where the product does not overflow.
            AllocatorFunction("posix_memalign", FunctionRole.POSIX_MEMALIGN),
            AllocatorFunction("aligned_alloc", FunctionRole.SIZE_SECOND),
            AllocatorFunction("memalign", FunctionRole.SIZE_SECOND),
            AllocatorFunction("valloc", FunctionRole.SIZE_FIRST),
            AllocatorFunction("pvalloc", FunctionRole.SIZE_FIRST),
            AllocatorFunction("cfree", FunctionRole.RELEASE),
        ),
    ),
)


# Where glibc's and musl's dynamic loaders tell debuggers that libraries came or went (r_brk, link.h).
DYNAMIC_LOADER = Allocator(
    "ld.so",
    re.compile(r"ld-linux-x86-64\.so\.2|ld-2\.\d+\.so|ld-musl-x86_64\.so\.1"),
    (AllocatorFunction("_dl_debug_state", FunctionRole.LIBRARIES_CHANGED),),
)


def allocators_in(mappings: Sequence[Mapping]) -> tuple[tuple[Allocator, Mapping], ...]:
    """The known allocators that are mapped, each with the first executable mapping of its file."""
    return _mapped(ALLOCATORS, mappings)


def loader_in(mappings: Sequence[Mapping]) -> tuple[tuple[Allocator, Mapping], ...]:
    """The dynamic loader in the same form; none in a static program."""
    return _mapped((DYNAMIC_LOADER,), mappings)


def _mapped(known: Sequence[Allocator], mappings: Sequence[Mapping]) -> tuple[tuple[Allocator, Mapping], ...]:
    found: dict[tuple[str, int], tuple[Allocator, Mapping]] = {}
    for mapping in mappings:
        if not mapping.executable or not mapping.inode:
            continue
        name = mapping.path.rsplit("/", 1)[-1]
        for allocator in known:
            if allocator.file_name.fullmatch(name):
                found.setdefault((mapping.device, mapping.inode), (allocator, mapping))
    return tuple(found.values())
