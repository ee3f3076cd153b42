"""The bill of a container's memory: all charges by kind, with their growth and one process' part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bpfleakd.model.container import ContainerBill, ContainerKind, ContainerLine, GroupMemory
from bpfleakd.units import human_rate

# Smaller growth is irrelevant.
_GROWTH_MIN_BYTES_PER_S = 1024.0
_WORDS = {
    ContainerKind.ANON: "anonymous memory of its processes",
    ContainerKind.FILE: "page cache, which the kernel reclaims before it kills a process",
    ContainerKind.SHMEM: "shared memory and files in tmpfs",
    ContainerKind.SLAB: "slab: kernel objects, such as open files and cached names",
    ContainerKind.SOCK: "buffers of sockets",
    ContainerKind.KERNEL_STACK: "kernel stacks of threads",
    ContainerKind.PAGE_TABLES: "page tables",
    ContainerKind.PERCPU: "per-processor memory of the kernel",
    ContainerKind.VMALLOC: "large blocks of the kernel (vmalloc)",
    ContainerKind.HUGETLB: "huge pages",
    ContainerKind.KERNEL: "kernel memory",
    ContainerKind.OTHER: "other kernel memory",
}


def container_bill(
    group: GroupMemory,
    process: Mapping[ContainerKind, int],
    first: ContainerBill | None = None,
    elapsed_s: float = 0.0,
) -> ContainerBill:
    """The bill of a group; `process` are the figures of one process. `first` is the bill of `elapsed_s` ago.

    Growth is None without `first`, or if that is of another group.
    """
    sums = dict(group.parts)
    rest = group.used_bytes - sum(sums.values())
    if rest > 0:
        sums[ContainerKind.OTHER] = rest
    has_growth = first is not None and first.cgroup == group.cgroup and elapsed_s > 0
    before = {line.kind: line for line in first.lines} if first is not None and has_growth else {}
    lines = []
    for kind in ContainerKind:
        size_bytes = sums.get(kind, 0)
        known = before[kind].bytes if kind in before else 0
        if size_bytes or known:
            growth = round((size_bytes - known) / elapsed_s, 1) if has_growth else None
            own = min(process[kind], size_bytes) if kind in process else None
            lines.append(ContainerLine(kind, size_bytes, growth, own))
    lines.sort(key=lambda line: -line.bytes)
    return ContainerBill(
        cgroup=group.cgroup,
        version=group.version,
        limit_bytes=group.limit_bytes,
        used_bytes=group.used_bytes,
        lines=tuple(lines),
        growth_summary=_growth_summary(lines, before, elapsed_s),
    )


def _growth_summary(
    lines: Sequence[ContainerLine], before: Mapping[ContainerKind, ContainerLine], elapsed_s: float
) -> str | None:
    total = sum(line.growth_bytes_per_s or 0 for line in lines)
    if total < _GROWTH_MIN_BYTES_PER_S:
        return None
    largest = max(lines, key=lambda line: line.growth_bytes_per_s or 0)
    growth = largest.growth_bytes_per_s or 0
    share = min(1.0, growth / total)
    words = f"the container grows {human_rate(total)}: {share:.0%} of it is {_WORDS[largest.kind]}"
    if largest.kind is not ContainerKind.FILE and largest.process_bytes is not None and growth > 0:
        known = before.get(largest.kind)
        own = largest.process_bytes - ((known.process_bytes or 0) if known else 0)
        own_share = min(1.0, max(0.0, own / elapsed_s / growth))
        words += f" ({own_share:.0%} of that in this process)"
    return words
