"""How much memory a process may have: of its control groups, its own limits, and the machine.

Every limit comes with what is used of it. Of a control group that is the memory that cannot be had back at
once: what it has charged, less the inactive part of the page cache (as kubelet counts it).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from bpfleakd.model.limit import MemoryLimit, MemoryLimitKind

__all__ = ["read_memory_limits"]

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

# cgroup v1 writes the largest number of pages that there is for "none".
_NONE_FROM = 1 << 62
_RESOURCES = {
    "Max address space": (MemoryLimitKind.ADDRESS_SPACE, "VmSize"),
    "Max data size": (MemoryLimitKind.DATA, "VmData"),
}


def read_memory_limits(pid: int, proc: Path = PROC, cgroup: Path = CGROUP) -> tuple[MemoryLimit, ...]:
    """All limits that there are, the one with the least room first; what cannot be read is left out."""
    limits = [*_of_groups(pid, proc, cgroup), *_of_process(pid, proc), *_of_machine(proc)]
    return tuple(sorted(limits, key=lambda limit: limit.limit_bytes - limit.used_bytes))


def _of_groups(pid: int, proc: Path, cgroup: Path) -> Iterator[MemoryLimit]:
    for line in _read(proc / str(pid) / "cgroup").splitlines():
        _number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        # Outside of the daemon's own namespace of groups, its parents are not to be seen.
        if not path.startswith("/") or ".." in PurePosixPath(path).parts:
            continue
        if controllers == "":
            yield from _of_hierarchy(cgroup, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _of_hierarchy(cgroup / "memory", path, *names)


def _of_hierarchy(root: Path, path: str, limit: str, used: str, inactive: str) -> Iterator[MemoryLimit]:
    """The limits of a group and of those that it is in."""
    group = root / path.lstrip("/")
    while group.is_relative_to(root):
        limit_bytes, used_bytes = _number(_read(group / limit)), _number(_read(group / used))
        if limit_bytes is not None and used_bytes is not None and limit_bytes < _NONE_FROM:
            idle = _fields(_read(group / "memory.stat"), " ").get(inactive, 0)
            yield MemoryLimit(MemoryLimitKind.CGROUP, limit_bytes, max(0, used_bytes - idle))
        if group == root:
            break
        group = group.parent


def _of_process(pid: int, proc: Path) -> Iterator[MemoryLimit]:
    used = _kilobytes(_read(proc / str(pid) / "status"))
    for line in _read(proc / str(pid) / "limits").splitlines():
        for name, (kind, field) in _RESOURCES.items():
            soft = _number(line[len(name) :].split()[0]) if line.startswith(name) else None
            if soft is not None and field in used:
                yield MemoryLimit(kind, soft, used[field])


def _of_machine(proc: Path) -> Iterator[MemoryLimit]:
    memory = _kilobytes(_read(proc / "meminfo"))
    if {"MemTotal", "MemAvailable"} <= memory.keys():
        total_bytes = memory["MemTotal"]
        yield MemoryLimit(MemoryLimitKind.HOST, total_bytes, total_bytes - memory["MemAvailable"])


def _kilobytes(text: str) -> dict[str, int]:
    return {name: number * 1024 for name, number in _fields(text, ":").items()}


def _fields(text: str, separator: str) -> dict[str, int]:
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(separator)
        number = _number(value.split()[0]) if value.split() else None
        if number is not None:
            fields[name] = number
    return fields


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
