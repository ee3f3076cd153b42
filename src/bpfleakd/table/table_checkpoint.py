"""The history of a process' call sites in plain numbers and bytes: what is written down of it.

Columns are float32, little endian, a row for each bin, compressed: what is live changes little from one bin
to the next.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.model.site import AllocationKind, SiteKey

__all__ = ["TableCheckpoint", "TimelineCheckpoint", "keys_of", "packed", "texts_of", "unpacked"]

_FASTEST = 1


class TimelineCheckpoint(Struct, frozen=True):
    """A timeline: bins end at `ends_ns`; `allocated_count` are the blocks born until the last of them.

    `lows_bytes`, `lows_count` and `births` are columns, of a row for each bin; of the first two a further row
    is what was live at the end.
    """

    began_ns: int
    ends_ns: list[int]
    lows_bytes: bytes
    lows_count: bytes
    births: bytes
    allocated_count: list[int]


class TableCheckpoint(Struct, frozen=True):
    """A table: sites by the name of their kind and their stack, in the order of the timeline's columns.

    `is_whole`: it has all sites. `totals` are points of the history of all live bytes; `gaps_ns` the times
    without readings.
    """

    timeline: TimelineCheckpoint
    sites: list[tuple[str, int]]
    is_whole: bool
    totals: list[tuple[int, int]]
    peak_live_bytes: int
    gaps_ns: list[tuple[int, int]]


def texts_of(keys: Sequence[SiteKey]) -> list[tuple[str, int]]:
    """Sites as they are written down."""
    return [(key.kind.value, key.stack_id) for key in keys]


def keys_of(sites: Sequence[tuple[str, int]]) -> list[SiteKey]:
    """The sites again. ValueError if a kind is not known, or a site is there twice."""
    keys = [SiteKey(AllocationKind(kind), stack_id) for kind, stack_id in sites]
    if len(set(keys)) != len(keys):
        raise ValueError("a call site is there twice")
    return keys


def packed(rows: NDArray[np.float64]) -> bytes:
    """Columns as bytes."""
    return zlib.compress(rows.astype("<f4").tobytes(), _FASTEST)


def unpacked(text: bytes, bins: int, sites: int) -> NDArray[np.float32]:
    """The columns again: `bins` rows of `sites`. ValueError if they are not that."""
    size = 4 * bins * sites
    decompress = zlib.decompressobj()
    try:
        rows = decompress.decompress(text, size + 1)
    except zlib.error as error:
        raise ValueError(f"columns that are damaged: {error}") from error
    if len(rows) != size:
        raise ValueError(f"columns of {len(rows)} bytes, not {size}")
    found = np.frombuffer(rows, "<f4").reshape(bins, sites)
    if not np.isfinite(found).all():
        raise ValueError("columns that hold no numbers")
    return found
