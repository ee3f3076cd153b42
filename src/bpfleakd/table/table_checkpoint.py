"""The history of a process' call sites in plain numbers and bytes, to be stored and restored.

Columns are float32, little endian, one row per bin, compressed: live figures change little from one bin to
the next.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.model.site import AllocationKind, SiteKey

_FASTEST = 1


class TimelineCheckpoint(Struct, frozen=True):
    """A timeline: bins end at `ends_ns`, and their first readings were at `firsts_ns`.

    `allocated_count` blocks were born until the end of the last one. `lows_bytes`, `lows_count` and `births`
    are columns with one row per bin; the first two have a further row with the live figures at the end.
    `all_born_count` are the births of all sites in each bin, also of those that are not stored.
    """

    began_ns: int
    ends_ns: list[int]
    firsts_ns: list[int]
    lows_bytes: bytes
    lows_count: bytes
    births: bytes
    allocated_count: list[int]
    all_born_count: list[float] = []


class TableCheckpoint(Struct, frozen=True):
    """A table: sites by the name of their kind and their stack, in the order of the timeline's columns.

    `is_whole` says that it has all sites. `totals` are points of the history of all live bytes; `gaps_ns` are
    the times without readings.
    """

    timeline: TimelineCheckpoint
    sites: list[tuple[str, int]]
    is_whole: bool
    totals: list[tuple[int, int]]
    peak_live_bytes: int
    gaps_ns: list[tuple[int, int]]


def texts_of(keys: Sequence[SiteKey]) -> list[tuple[str, int]]:
    """Sites as pairs of the kind's name and the stack."""
    return [(key.kind.value, key.stack_id) for key in keys]


def keys_of(sites: Sequence[tuple[str, int]]) -> list[SiteKey]:
    """The sites of such pairs. Raises ValueError if a kind is unknown, or a site occurs twice."""
    keys = [SiteKey(AllocationKind(kind), stack_id) for kind, stack_id in sites]
    if len(set(keys)) != len(keys):
        raise ValueError("a call site is there twice")
    return keys


def packed(rows: NDArray[np.float64]) -> bytes:
    """Columns as compressed bytes."""
    return zlib.compress(rows.astype("<f4").tobytes(), _FASTEST)


def unpacked(text: bytes, bins: int, sites: int) -> NDArray[np.float32]:
    """The columns of compressed bytes: `bins` rows of `sites`. Raises ValueError for any other shape."""
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
