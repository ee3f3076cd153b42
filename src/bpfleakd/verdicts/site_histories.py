"""Figures of call sites over time: the input of verdicts."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.verdicts.envelope import Matrix, Row

Flags = NDArray[np.bool_]


class SiteHistories(Struct, frozen=True):
    """Figures of sites: one row per bin of time, one column per site.

    `ends_s` are the ends of bins since the recording began; `low_bytes` and `low_count` are the least live
    figures in each bin, `born_count` the blocks allocated in it. `live_bytes` and `live_count` are live now.
    `survivors_count` and `survivors_bytes` are the live blocks born in each bin; None if they were not
    counted. `weight` is how many blocks a recorded one represents (None: all are recorded). `is_heap`
    distinguishes an allocator's blocks from mappings (None: all are blocks). `intervals_bytes` is the
    coarsest sampling interval in each bin, 0 if every block was recorded (None: it never changed).
    `collections` is the number of the heap's collections at which figures were read (None: they were read at
    every tick). `allocated_count` are the blocks that all sites of the process had allocated by the end of
    each bin, and `firsts_s` the times of the first readings in the bins (None: both are unknown).
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
    allocated_count: Row | None = None
    firsts_s: Row | None = None


def chosen(histories: SiteHistories, sites: NDArray[np.intp]) -> SiteHistories:
    """The histories of some of the sites."""
    of_all = ("ends_s", "intervals_bytes", "collections", "allocated_count", "firsts_s")
    # msgspec's fields() evaluates all annotations at each call.
    columns = {name: getattr(histories, name) for name in histories.__struct_fields__}
    by_site = {name: column for name, column in columns.items() if name not in of_all and column is not None}
    return replace(histories, **{name: column[..., sites] for name, column in by_site.items()})
