"""The managed heap of a process."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from bpfleakd.model.verdict import Verdict


class TypeFigures(Struct, frozen=True):
    """Objects of one type. `live_count` is None if only their bytes are known, from samples.

    `is_proven`: a full collection found them alive long after they were allocated. `age_s`: the age of these
    figures if samples are no longer taken.
    """

    type: str
    live_bytes: int
    live_count: int | None
    growth_bytes_per_s: float
    is_proven: bool = True
    age_s: float = 0.0


class AreaKind(StrEnum):
    """Uses of a runtime's memory other than objects."""

    METASPACE = "metaspace"
    CODE_CACHE = "code_cache"


class RuntimeArea(Struct, frozen=True):
    """Memory of a runtime other than objects, by its own figures: committed, and used."""

    kind: AreaKind
    used_bytes: int
    committed_bytes: int


class ManagedHeap(Struct, frozen=True):
    """A managed heap according to its collections since the attach.

    `live_bytes` are those that the last one left alive; None before the first. `full_collections` covered all
    objects, so their figure is exact; that of others is an upper bound. `growth_bytes_per_s` is the growth of
    what outlives collections, 0.0 if it does not grow. `is_read`: the heap counts references; a "collection"
    is then a reading of all objects. `areas`: the runtime's memory other than objects. `limit_bytes`: the
    size beyond which the runtime refuses memory; None if unknown. `growth_confidence`: how sure growth is, by
    the number of collections and the time watched.
    """

    runtime: str
    verdict: Verdict
    reason: str
    live_bytes: int | None
    collections: int
    full_collections: int
    growth_bytes_per_s: float
    is_read: bool = False
    areas: tuple[RuntimeArea, ...] = ()
    limit_bytes: int | None = None
    growth_confidence: float = 1.0


class TypesPrice(Struct, frozen=True):
    """The cost of counting a heap's objects by type: stops the process for about `stops_s`, for `work`.

    None if the size of the heap is unknown.
    """

    pid: int
    comm: str
    runtime: str
    stops_s: float | None
    work: str = "a full collection and a walk over all objects"


class TypeRow(Struct, frozen=True):
    """All objects of one type, without the objects they refer to.

    Changes are since the last count; None before.
    """

    type: str
    live_bytes: int
    live_count: int
    change_bytes: int | None
    change_count: int | None


class TypesReport(Struct, frozen=True):
    """The contents of a managed heap by type, most bytes first. The last count was `since_s` ago.

    `includes_garbage`: objects that no collection has freed yet are counted.
    """

    pid: int
    comm: str
    runtime: str
    took_s: float
    since_s: float | None
    types: tuple[TypeRow, ...]
    includes_garbage: bool = False
