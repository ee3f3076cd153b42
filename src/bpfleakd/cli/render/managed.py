"""The managed heap of a process, in lines: the live heap after collections, its types, missing data."""

from __future__ import annotations

from collections.abc import Sequence

from bpfleakd.model.runtimes.managed import AreaKind, ManagedHeap, RuntimeArea, TypeFigures
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration, human_rate

_TYPES_SHOWN = 3
_AREAS = {AreaKind.METASPACE: "metaspace", AreaKind.CODE_CACHE: "code cache"}


def heap_lines(heap: ManagedHeap | None, types: Sequence[TypeFigures], notes: Sequence[str]) -> list[str]:
    """One line for the heap, one for the types with most bytes, and one per note."""
    lines = [heap_line(heap)] if heap else []
    shown = [_type(one) for one in types[:_TYPES_SHOWN] if one.live_bytes]
    if shown:
        lines.append(f"of the memory allocated since the attach {_stays(types)}: {', '.join(shown)}")
    return [*lines, *(printable(note) for note in notes)]


def heap_line(heap: ManagedHeap) -> str:
    """The live bytes, the limit, and the number of collections."""
    if heap.live_bytes is None:
        return f"{heap.runtime} heap: not {'read' if heap.is_read else 'collected'} yet"
    count = f"{heap.collections:,} collection{'' if heap.collections == 1 else 's'}"
    grows = f", {human_rate(heap.growth_bytes_per_s)}" if heap.growth_bytes_per_s else ""
    live = human_bytes(heap.live_bytes)
    if heap.is_read:
        readings = f"{heap.collections:,} reading{'' if heap.collections == 1 else 's'}"
        return f"{heap.runtime} objects: {live} in use, by {readings}{grows}"
    most = "" if heap.limit_bytes is None else f" of {human_bytes(heap.limit_bytes)}"
    full = f"{heap.full_collections:,} of them full"
    return f"{heap.runtime} heap: {live}{most} alive after {count}, {full}{grows}"


def area_lines(areas: Sequence[RuntimeArea]) -> list[str]:
    """One line for each area of a runtime other than its objects."""
    return [
        f"{_AREAS[area.kind]}: {human_bytes(area.used_bytes)} in use, "
        f"{human_bytes(area.committed_bytes)} committed"
        for area in areas
    ]


def _stays(types: Sequence[TypeFigures]) -> str:
    says = "stays"
    if not all(one.is_proven for one in types):
        says = "survived collections, with no full one that confirms it yet"
    age_s = max(one.age_s for one in types)
    return f"{says}, as of {human_duration(age_s)} ago" if age_s else says


def _type(one: TypeFigures) -> str:
    return f"{printable(one.type)} {human_bytes(one.live_bytes)} {human_rate(one.growth_bytes_per_s)}"
