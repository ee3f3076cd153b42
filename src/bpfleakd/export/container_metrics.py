"""The control groups that limit traced processes, as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bpfleakd.export.client import GaugeMetricFamily, Metric
from bpfleakd.export.figures import label_text
from bpfleakd.model.container import GroupMemory


def container_families(groups: Iterable[GroupMemory]) -> Iterator[Metric]:
    """Limit, use, and uses by kind; each path occurs once."""
    limit = GaugeMetricFamily(
        "bpfleakd_container_limit_bytes",
        "Memory limit of a control group with traced processes: the nearest of theirs.",
        labels=["cgroup"],
        unit="bytes",
    )
    used = GaugeMetricFamily(
        "bpfleakd_container_used_bytes",
        "Memory charged to this control group, page cache included.",
        labels=["cgroup"],
        unit="bytes",
    )
    parts = GaugeMetricFamily(
        "bpfleakd_container_memory_bytes",
        "The same by kind: anon, file (page cache), shmem, slab, sock, and other kernel memory.",
        labels=["cgroup", "kind"],
        unit="bytes",
    )
    by_name = {label_text(group.cgroup, keep_end=True): group for group in groups}
    for name, group in by_name.items():
        limit.add_metric([name], group.limit_bytes)
        used.add_metric([name], group.used_bytes)
        for kind, size_bytes in group.parts.items():
            parts.add_metric([name, kind.value], size_bytes)
    yield limit
    yield used
    yield parts
