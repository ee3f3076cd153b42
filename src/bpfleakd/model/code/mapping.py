"""Mappings of an address space."""

from __future__ import annotations

from msgspec import Struct

HUGE_PAGES = "/anon_hugepage"
"""The path of anonymous memory in huge pages (MAP_HUGETLB)."""


class Mapping(Struct, frozen=True):
    """A line of /proc/PID/maps. `path` is as /proc names it, "" for anonymous memory.

    `offset` is the file offset of `start`; (`device`, `inode`) identify the file; `deleted` files have no
    name, but can be opened through /proc/PID/map_files. `shared`: writes reach the file.
    """

    start: int
    end: int
    offset: int
    device: str
    inode: int
    path: str
    readable: bool
    writable: bool
    executable: bool
    deleted: bool = False
    shared: bool = False


class CodeMapping(Struct, frozen=True):
    """Executable memory of a file. `build_id` is in hex; None for a file without one."""

    start: int
    end: int
    offset: int
    path: str
    build_id: str | None


class LoadedCode(Struct, frozen=True):
    """Executable memory that a process mapped since its attach, and may have unmapped again.

    Words of stacks there have its `number`. `was_unnumbered`: it was the first code there, so that words
    without a number are of it, too. `mapping.inode` 0: no file is known.
    """

    number: int
    mapping: Mapping
    was_unnumbered: bool = False
