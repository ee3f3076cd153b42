"""The control groups that limit traced processes, as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bpfleakd.export.families import Family, GaugeFamily
from bpfleakd.export.figures import label_text
from bpfleakd.model.container import GroupMemory

__all__ = ["container_families"]


def container_families(groups: Iterable[GroupMemory]) -> Iterator[Family]:
    """What they may use, what they use, and for what; a path occurs once."""
    limit = GaugeFamily(
        "bpfleakd_container_limit_bytes",
        "Memory limit of a control group with traced processes: the nearest of theirs.",
        labels=["cgroup"],
        unit="bytes",
    )
    used = GaugeFamily(
        "bpfleakd_container_used_bytes",
        "Memory charged to this control group, page cache included.",
        labels=["cgroup"],
        unit="bytes",
    )
    parts = GaugeFamily(
        "bpfleakd_container_memory_bytes",
        "The same by kind: anon, file (page cache), shmem, slab, sock, and other kernel memory.",
        labels=["cgroup", "kind"],
        unit="bytes",
    )
    by_name = {label_text(group.cgroup, keep_end=True): group for group in groups}
    for name, group in by_name.items():
        limit.add([name], group.limit_bytes)
        used.add([name], group.used_bytes)
        for kind, size_bytes in group.parts.items():
            parts.add([name, kind.value], size_bytes)
    yield limit
    yield used
    yield parts
