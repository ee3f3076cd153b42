"""Processes whose memory is watched."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from bpfleakd.model.process import TracingMode


class WatchState(StrEnum):
    """The state of a watched process.

    WATCHED does not grow. GROWING does, and waits for a window of tracing; it is traced in a WINDOW, and
    rests after it (PAUSED). REFUSED grows and cannot be traced.
    """

    WATCHED = "watched"
    GROWING = "growing"
    WINDOW = "window"
    PAUSED = "paused"
    REFUSED = "refused"


class WatchedProcess(Struct, frozen=True):
    """A process whose anonymous memory is watched; `windows` is how often it was traced.

    `growth_bytes_per_s` is 0 unless it grows persistently, `next_look_s` the time until it may be traced
    again, None if that is not planned. `reason` is why attaching failed, or "". `descriptors` is the number
    of its file descriptors, None unless counted; `descriptors_reason` says that it grows, or "".
    """

    pid: int
    comm: str
    mode: TracingMode
    state: WatchState
    anonymous_bytes: int
    growth_bytes_per_s: float
    windows: int
    next_look_s: float | None
    reason: str
    descriptors: int | None = None
    descriptors_per_min: float = 0.0
    descriptors_reason: str = ""


class WatchSummary(Struct, frozen=True):
    """All watched processes in figures, and the `fastest` growers, the fastest first."""

    watched: int = 0
    growing: int = 0
    windows_open: int = 0
    windows_opened_total: int = 0
    fastest: tuple[WatchedProcess, ...] = ()
