"""The layouts of the runtime's structures, by release. Offsets are in bytes, of 64-bit programs.

Sources: runtime/mprof.go, runtime2.go and symtab.go of each release, and the DWARF of programs made by 1.19,
1.21 to 1.24, 1.26 and 1.27. A layout that is equal in two of them is equal in between. Other releases are
refused, since a changed structure would be misread. Properties that can be checked in the process are not
listed here but tried (`goroutines`).
"""

from __future__ import annotations

from msgspec import Struct

FIRST_RELEASE, LAST_RELEASE = (1, 18), (1, 27)


class GoLayout(Struct, frozen=True):
    """`functions_data` is the offset in moduledata of the address of go:func.*.

    `counters` is the number of words in the current part of a bucket's record: allocs, frees and the bytes of
    both; the bytes are left out since 1.27. `has_memory_limit`: the collector has a limit, since 1.19. Stacks
    have `stack_max` frames at most, unless GODEBUG=profstackdepth says otherwise.
    """

    functions_data: int
    counters: int
    stack_max: int
    has_memory_limit: bool


def layout_of(release: tuple[int, int]) -> GoLayout | None:
    """The layout of a release; None if it is unknown."""
    if not FIRST_RELEASE <= release <= LAST_RELEASE:
        return None
    return GoLayout(
        functions_data=304 if release < (1, 20) else 320 if release < (1, 27) else 344,
        counters=4 if release < (1, 27) else 2,
        stack_max=32 if release < (1, 23) else 128,
        has_memory_limit=release >= (1, 19),
    )
