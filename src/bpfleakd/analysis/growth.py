"""How fast outstanding memory grows."""

from __future__ import annotations

from bpfleakd.table.history import History

__all__ = ["growth_bytes_per_s"]

_NS_PER_S = 1_000_000_000


def growth_bytes_per_s(history: History, began_ns: int, now_ns: int, window_s: float) -> float:
    """Bytes gained between the start of the window and now, per second of it; negative where they shrank.

    The window is the last `window_s` seconds, but begins no earlier than the recording (`began_ns`);
    0.0 while no time has passed. It is a difference of two states, not a fit: what was allocated and
    freed within the window does not show.
    """
    start_ns = max(began_ns, now_ns - round(window_s * _NS_PER_S))
    if now_ns <= start_ns:
        return 0.0
    return (history.at(now_ns) - history.at(start_ns)) * _NS_PER_S / (now_ns - start_ns)
