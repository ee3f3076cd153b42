"""How fast outstanding memory grows."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_NS_PER_S = 1_000_000_000
# A reading may take 0.2 s (counter_collector.py), so its time is too uncertain for shorter stretches.
_STRETCH_MIN_S = 2.0

_Bytes = TypeVar("_Bytes", float, NDArray[np.float64])


def growth_window_ns(edges_ns: NDArray[np.int64], window_s: float) -> tuple[int, int] | None:
    """The first and last reading between which growth over `window_s` is measured.

    Returns None if that stretch is too short to measure growth.

    `edges_ns` are times of readings, in order; the first is the start of the recording. The time of a change
    between two readings is unknown. If there was no reading for a while (the daemon stalled or was killed),
    the stretch begins before that time, and is longer than the window.
    """
    end_ns = int(edges_ns[-1])
    start = int(np.searchsorted(edges_ns, end_ns - round(window_s * _NS_PER_S), side="right")) - 1
    start_ns = int(edges_ns[max(0, start)])
    shortest_ns = round(min(window_s, _STRETCH_MIN_S) * _NS_PER_S)
    return (start_ns, end_ns) if end_ns - start_ns >= shortest_ns else None


def collected_window_ns(
    edges_ns: NDArray[np.int64], collected_ns: NDArray[np.int64], window_s: float
) -> tuple[int, int, int] | None:
    """The stretch for growth over `window_s` where figures change only at collections.

    A collection shows what the one before it left (Go publishes a profile once the blocks that were dead then
    have been freed: `mProf_Flush` in runtime/mprof.go). The stretch lasts from one collection to the last one
    shown. Returns an edge at which the figures were those of the first collection, and the times of both;
    None without two collections that are far enough apart. The stretch exceeds the window if the time between
    collections does.
    """
    shown = np.searchsorted(collected_ns, edges_ns, side="right") - 2
    edges_ns, shown_ns = edges_ns[shown >= 0], collected_ns[shown[shown >= 0]]
    if not len(shown_ns):
        return None
    end_ns = int(shown_ns[-1])
    start = int(np.searchsorted(shown_ns, end_ns - round(window_s * _NS_PER_S), side="right")) - 1
    start_ns = int(shown_ns[max(0, start)])
    shortest_ns = round(min(window_s, _STRETCH_MIN_S) * _NS_PER_S)
    return (int(edges_ns[max(0, start)]), start_ns, end_ns) if end_ns - start_ns >= shortest_ns else None


def growth_bytes_per_s(gained_bytes: _Bytes, start_ns: int, end_ns: int) -> _Bytes:
    """The bytes gained between two readings, per second; negative if memory shrank.

    This is a difference of two states, not a fit: blocks allocated and freed in between do not show.
    `start_ns` is before `end_ns`.
    """
    return gained_bytes * _NS_PER_S / (end_ns - start_ns)
