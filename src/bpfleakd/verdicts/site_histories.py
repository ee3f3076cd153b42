"""Figures of call sites over time, the input of their verdicts."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import fields, replace
from numpy.typing import NDArray

from bpfleakd.verdicts.envelope import Matrix, Row

__all__ = ["Flags", "SiteHistories", "chosen"]

Flags = NDArray[np.bool_]


class SiteHistories(Struct, frozen=True):
    """Figures of sites: a row a bin of time, a column a site.

    `ends_s` is when bins end, since the recording began; `low_bytes` and `low_count` the least live figures
    in each, `born_count` the blocks allocated in it. `live_bytes` and `live_count` are live now.
    `survivors_count` and `survivors_bytes` are the live blocks that were born in each bin; None if they were
    not counted. `weight` is how many blocks a recorded one stands for (None: all are recorded). `is_heap`
    distinguishes blocks of an allocator from mappings (None: all are). `intervals_bytes` is the coarsest
    sampling interval in each bin, 0 if every block was recorded (None: it never changed). Figures of sites
    are those of this number of `collections` of their heap (None: of every tick).
    """

    ends_s: Row
    low_bytes: Matrix
    low_count: Matrix
    born_count: Matrix
    live_bytes: Row
    live_count: Row
    survivors_count: Matrix | None = None
    survivors_bytes: Matrix | None = None
    weight: Row | None = None
    is_heap: Flags | None = None
    intervals_bytes: Row | None = None
    collections: int | None = None


def chosen(histories: SiteHistories, sites: NDArray[np.intp]) -> SiteHistories:
    """The histories of some of the sites."""
    of_all = ("ends_s", "intervals_bytes", "collections")
    columns = {field.name: getattr(histories, field.name) for field in fields(SiteHistories)}
    by_site = {name: column for name, column in columns.items() if name not in of_all and column is not None}
    return replace(histories, **{name: column[..., sites] for name, column in by_site.items()})
