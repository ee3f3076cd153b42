"""Schedules the windows of tracing for growing processes.

Rules:
  - At most `windows` are open at once; the fastest growers go first.
  - After a window a process rests: `pause_s`, twice as long each time, up to `pause_max_s`.
  - A process that has not grown for `calm_s` starts over.
  - A process that can never be attached is not tried again; one that cannot be attached now rests.

Times come from any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from msgspec import Struct

from bpfleakd.model.watching import WatchState

K = TypeVar("K", bound=Hashable)


class LookOptions(Struct, frozen=True):
    """The maximum of simultaneous windows, and the pause between those of a process."""

    windows: int = 4
    pause_s: float = 300.0
    pause_max_s: float = 3600.0
    calm_s: float = 300.0


class Look(Struct):
    """The state of a process.

    `next_look_s` is when it may get a window again; `reason` why it was refused.
    """

    state: WatchState = WatchState.WATCHED
    bytes_per_s: float = 0.0
    windows: int = 0
    next_look_s: float = 0.0
    reason: str = ""
    pause_s: float = 0.0
    grew_s: float = 0.0


class LookSchedule(Generic[K]):
    """The processes that grow or grew; all others are missing."""

    def __init__(self, options: LookOptions) -> None:
        self._options = options
        self._looks: dict[K, Look] = {}
        self.opened_total = 0

    def look(self, key: K) -> Look:
        """The state of a process; WATCHED if it never grew."""
        return self._looks.get(key) or Look()

    def count(self, *states: WatchState) -> int:
        """The number of processes in any of these states."""
        return sum(look.state in states for look in self._looks.values())

    def forget(self, key: K) -> None:
        """Forget a process that has ended or gets no more windows; ignores unknown ones."""
        self._looks.pop(key, None)

    def growing(self) -> list[tuple[K, Look]]:
        """The growing processes, the fastest first."""
        found = [pair for pair in self._looks.items() if pair[1].bytes_per_s > 0]
        return sorted(found, key=lambda pair: pair[1].bytes_per_s, reverse=True)

    def note(self, key: K, now_s: float, bytes_per_s: float) -> None:
        """Record the growth of a process; 0 without growth."""
        look = self._looks.get(key)
        if look is None:
            if bytes_per_s <= 0:
                return
            look = self._looks[key] = Look(pause_s=self._options.pause_s)
        look.bytes_per_s = bytes_per_s
        if bytes_per_s > 0:
            look.grew_s = now_s
            if look.state is WatchState.WATCHED:
                look.state = WatchState.GROWING
        elif look.state is WatchState.GROWING:
            look.state = WatchState.WATCHED if not look.windows else WatchState.PAUSED
        if self._is_over(look, now_s):
            del self._looks[key]

    def due_windows(self, now_s: float) -> list[K]:
        """The processes to open a window for now. Each counts as open until `closed`, `failed`, `forget`."""
        free = self._options.windows - self.count(WatchState.WINDOW)
        found: list[K] = []
        for key, look in self.growing():
            if look.state is WatchState.PAUSED and now_s >= look.next_look_s:
                look.state = WatchState.GROWING
            if look.state is WatchState.GROWING and len(found) < free:
                look.state = WatchState.WINDOW
                found.append(key)
        return found

    def opened(self, key: K) -> None:
        """Record that the wanted window is open."""
        look = self._looks.get(key)
        if look is not None:
            look.windows += 1
            self.opened_total += 1

    def resumed(self, key: K, now_s: float) -> None:
        """Record a window that was opened before anything was recorded here."""
        self._looks[key] = Look(WatchState.WINDOW, windows=1, pause_s=self._options.pause_s, grew_s=now_s)

    def closed(self, key: K, now_s: float) -> None:
        """Record that the window is over: the process rests."""
        self._rest(key, now_s)

    def failed(self, key: K, now_s: float, reason: str, *, for_good: bool) -> None:
        """Record that the process could not be attached to."""
        look = self._rest(key, now_s)
        if look is not None:
            look.reason = reason
            if for_good:
                look.state = WatchState.REFUSED

    def _rest(self, key: K, now_s: float) -> Look | None:
        look = self._looks.get(key)
        if look is not None:
            look.state = WatchState.PAUSED
            look.reason = ""
            look.next_look_s = now_s + look.pause_s
            look.pause_s = min(2 * look.pause_s, self._options.pause_max_s)
        return look

    def _is_over(self, look: Look, now_s: float) -> bool:
        kept = (WatchState.WINDOW, WatchState.REFUSED)
        return look.state not in kept and now_s - look.grew_s >= self._options.calm_s
