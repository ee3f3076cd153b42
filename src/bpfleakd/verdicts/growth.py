"""How fast outstanding memory grows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpfleakd.table.history import History

__all__ = ["growth_bytes_per_s", "growth_window_ns"]

_NS_PER_S = 1_000_000_000


def growth_window_ns(edges_ns: NDArray[np.int64], window_s: float) -> tuple[int, int]:
    """The stretch that growth over `window_s` is measured in: from one reading to the last.

    `edges_ns` are times of readings, in order, the first the start of the recording. The time of a change
    between two readings is unknown. So if there was no reading for a while (a daemon that was stalled, or
    killed), the stretch begins before that, and is longer than the window.
    """
    end_ns = int(edges_ns[-1])
    start = int(np.searchsorted(edges_ns, end_ns - round(window_s * _NS_PER_S), side="right")) - 1
    return int(edges_ns[max(0, start)]), end_ns


def growth_bytes_per_s(history: History, start_ns: int, end_ns: int) -> float:
    """Bytes gained between two readings, per second; negative where they shrank.

    0.0 while no time has passed. It is a difference of two states, not a fit: what was allocated and freed in
    between does not show.
    """
    if end_ns <= start_ns:
        return 0.0
    return (history.at(end_ns) - history.at(start_ns)) * _NS_PER_S / (end_ns - start_ns)
