"""Mappings with what of them is in memory."""

from __future__ import annotations

from collections.abc import Iterable

from bpfleakd.model.address_space import MappingUsage
from bpfleakd.model.code.mapping import Mapping

PAGE = 4096
ARENA = 64 << 20


def a_usage(
    start: int = ARENA,
    pages: int = 23,
    rights: str = "rw-",
    *,
    path: str = "",
    inode: int = 0,
    shared: bool = False,
    flags: Iterable[str] = (),
    resident_pages: int = 0,
    dirty_pages: int | None = None,
    swap_pages: int = 0,
) -> MappingUsage:
    """A private mapping; its resident pages are dirty unless given otherwise."""
    return MappingUsage(
        Mapping(start, start + pages * PAGE, 0, "00:01", inode, path, *(right != "-" for right in rights)),
        shared,
        resident_pages * PAGE,
        (resident_pages if dirty_pages is None else dirty_pages) * PAGE,
        swap_pages * PAGE,
        frozenset(flags),
    )
