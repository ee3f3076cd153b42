"""The control groups that limit a process' memory, and what they are charged for: cgroup v1 and v2.

Files and fields: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. What cannot be read is
left out: a group may go at any moment.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from bpfleakd.model.container import ContainerKind, GroupMemory
from bpfleakd.process.proc_text import kilobyte_fields, read_text, whole_number

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

# cgroup v1 writes the largest possible number of pages for "none".
_NONE_FROM = 1 << 62
# Containers may nest groups thousands deep. 16 MB are kept at most.
_HIERARCHIES_KEPT, _KEPT_PATH_MAX = 64, 512

_STATUS = {
    "RssAnon": ContainerKind.ANON,
    "RssFile": ContainerKind.FILE,
    "RssShmem": ContainerKind.SHMEM,
    "VmPTE": ContainerKind.PAGE_TABLES,
}
# Fields of memory.stat in v2 that are kinds, or parts of one; all but the first three are kernel memory.
_KINDS_V2 = {
    "anon": ContainerKind.ANON,
    "sock": ContainerKind.SOCK,
    "hugetlb": ContainerKind.HUGETLB,
    "slab": ContainerKind.SLAB,
    "kernel_stack": ContainerKind.KERNEL_STACK,
    "pagetables": ContainerKind.PAGE_TABLES,
    "sec_pagetables": ContainerKind.PAGE_TABLES,
    "percpu": ContainerKind.PERCPU,
    "vmalloc": ContainerKind.VMALLOC,
}
_NOT_KERNEL = ("anon", "sock", "hugetlb")


class LimitedGroup(Struct, frozen=True):
    """A control group with a limit, in the hierarchy of `version`.

    `used_bytes` are all charged bytes; `idle_bytes` are those of the inactive page cache, which can be
    reclaimed at once.
    """

    directory: Path
    cgroup: str
    version: int
    limit_bytes: int
    used_bytes: int
    idle_bytes: int

    @property
    def room_bytes(self) -> int:
        """How much more the group may use before memory must be reclaimed from what is in use."""
        return self.limit_bytes - max(0, self.used_bytes - self.idle_bytes)


class _Group(Struct, frozen=True):
    directory: Path
    cgroup: str
    version: int


class GroupReader:
    """Reads the groups with limits of many processes at one moment: each group once."""

    def __init__(self, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._proc = proc
        self._cgroup = cgroup
        self._known: dict[str, tuple[LimitedGroup, ...]] = {}

    def limited(self, pid: int) -> tuple[LimitedGroup, ...]:
        """The groups with limits that contain a process, the innermost first."""
        memberships = read_text(f"{self._proc}/{pid}/cgroup")
        if memberships not in self._known:
            self._known[memberships] = tuple(_limited(memberships, self._cgroup))
        return self._known[memberships]

    def narrowest(self, pid: int) -> LimitedGroup | None:
        """The group with the least room, where the OOM killer will act first; None if none has a limit."""
        return min(self.limited(pid), key=lambda group: group.room_bytes, default=None)


def read_group_memory(group: LimitedGroup) -> GroupMemory:
    """The current charges of the group and its descendants."""
    stat = _fields(read_text(group.directory / "memory.stat"))
    parts = _parts_v2(stat) if group.version == 2 else _parts_v1(stat, group.directory)
    used_bytes = whole_number(read_text(group.directory / _USED[group.version]))
    return GroupMemory(
        cgroup=group.cgroup,
        version=group.version,
        limit_bytes=group.limit_bytes,
        used_bytes=group.used_bytes if used_bytes is None else used_bytes,
        parts={kind: size_bytes for kind, size_bytes in parts.items() if size_bytes > 0},
    )


def read_process_parts(pid: int, proc: Path = PROC) -> dict[ContainerKind, int]:
    """The figures of a process for the kinds in /proc/PID/status; empty if it is gone."""
    fields = kilobyte_fields(read_text(proc / str(pid) / "status"))
    return {kind: fields[name] for name, kind in _STATUS.items() if name in fields}


_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}
_USED = {1: "memory.usage_in_bytes", 2: "memory.current"}
_INACTIVE = {1: "total_inactive_file", 2: "inactive_file"}


def _limited(memberships: str, cgroup: Path) -> Iterator[LimitedGroup]:
    for group in _groups(memberships, cgroup):
        directory, version = str(group.directory), group.version
        limit_bytes = whole_number(read_text(f"{directory}/{_LIMIT[version]}"))
        if limit_bytes is None or limit_bytes >= _NONE_FROM:
            continue
        used_bytes = whole_number(read_text(f"{directory}/{_USED[version]}"))
        if used_bytes is not None:
            idle_bytes = _fields(read_text(f"{directory}/memory.stat")).get(_INACTIVE[version], 0)
            yield LimitedGroup(group.directory, group.cgroup, version, limit_bytes, used_bytes, idle_bytes)


def _groups(memberships: str, cgroup: Path) -> Iterator[_Group]:
    """The groups of a process and their ancestors, by its /proc/PID/cgroup."""
    for line in memberships.split("\n"):
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        # Parents outside of the daemon's own cgroup namespace are invisible.
        if not path.startswith("/") or ".." in path.split("/"):
            continue
        known = _of_hierarchy if len(path) < _KEPT_PATH_MAX else _of_hierarchy.__wrapped__
        if controllers == "":
            yield from known(cgroup, path, 2)
        elif "memory" in controllers.split(","):
            yield from known(cgroup / "memory", path, 1)


@functools.lru_cache(_HIERARCHIES_KEPT)
def _of_hierarchy(root: Path, path: str, version: int) -> tuple[_Group, ...]:
    """The group and its ancestors."""
    groups, group = [], root / path.lstrip("/")
    while group != root:
        groups.append(_Group(group, f"/{group.relative_to(root)}", version))
        group = group.parent
    return (*groups, _Group(root, "/", version))


def _parts_v2(stat: dict[str, int]) -> dict[ContainerKind, int]:
    parts = dict.fromkeys(ContainerKind, 0)
    for field, kind in _KINDS_V2.items():
        parts[kind] += stat.get(field, 0)
    _add_files(parts, stat.get("file", 0), stat.get("shmem", 0), stat.get("swapcached", 0))
    # "kernel" is the sum, since Linux 5.18 (commit a8c49af3be5f).
    named = sum(stat.get(field, 0) for field in _KINDS_V2 if field not in _NOT_KERNEL)
    parts[ContainerKind.KERNEL] = max(0, stat.get("kernel", 0) - named)
    return parts


def _parts_v1(stat: dict[str, int], directory: Path) -> dict[ContainerKind, int]:
    """Kernel memory is one figure in v1; TCP buffers are counted separately, outside of the usage."""
    parts = {
        ContainerKind.ANON: stat.get("total_rss", 0),
        ContainerKind.KERNEL: whole_number(read_text(directory / "memory.kmem.usage_in_bytes")) or 0,
    }
    names = "total_cache", "total_shmem", "total_swapcached"
    _add_files(parts, *(stat.get(name, 0) for name in names))
    return parts


def _add_files(parts: dict[ContainerKind, int], all_bytes: int, shmem_bytes: int, swapped_bytes: int) -> None:
    """Add the files.

    The kernel counts tmpfs, and anonymous pages on their way to swap, as files (NR_FILE_PAGES).
    """
    parts[ContainerKind.SHMEM] = shmem_bytes
    parts[ContainerKind.FILE] = max(0, all_bytes - shmem_bytes - swapped_bytes)


def _fields(text: str) -> dict[str, int]:
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        number = whole_number(value)
        if number is not None:
            fields[name] = number
    return fields
