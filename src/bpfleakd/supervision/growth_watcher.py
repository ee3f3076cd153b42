"""Automatic tracing: watches every process, and traces growing ones for a while.

The supervisor tracks the existing processes; only it attaches and detaches. `GrowthWatcher` reads the memory
of processes that the policy assigns to it, judges their growth, and requests windows of tracing.

    supervisor ── add, remove ──────────────▶ watcher      a process came, went, or is not to be watched
    supervisor ── step(now) at each tick ───▶ watcher
               ◀── [Open, Close, …] ─────────              what it wants
    supervisor ── opened, closed, failed ───▶ watcher      what came of it
    supervisor ── resumed ──────────────────▶ watcher      a window that an earlier daemon opened

All of it runs in the tracing thread. `step` takes milliseconds for 1,000 processes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import structlog
from msgspec import Struct

from bpfleakd.model.process import ProcessId, TracingMode
from bpfleakd.model.watching import WatchedProcess, WatchState, WatchSummary
from bpfleakd.process.memory_sampler import read_anonymous_bytes
from bpfleakd.process.policy.rules import Decision
from bpfleakd.process.process import command_of
from bpfleakd.supervision.descriptor_watch import DescriptorWatch
from bpfleakd.supervision.growth_watch import GrowthOptions, GrowthWatch, WatchedGrowth
from bpfleakd.supervision.look_schedule import LookOptions, LookSchedule
from bpfleakd.supervision.reading_rounds import ReadingRounds

log = structlog.get_logger()

_NS_PER_S = 1_000_000_000
# 20 us each: a step stays short, and covers 1,000 processes.
_READINGS_A_STEP = 1_000
_FASTEST = 10
# Processes that are no longer watched, whose last reading is kept for a minute.
_GONE_MAX = 256
_GONE_S = 60.0
# A reading that differs by less than this share of the least growth that counts is not a change.
_CHANGE = 1 / 8


class Open(Struct, frozen=True):
    """Attach in this mode, for `window_s` seconds; `reason` is shown ("grows by 3 MiB/s")."""

    process: ProcessId
    mode: TracingMode
    window_s: float
    reason: str


class Close(Struct, frozen=True):
    """Detach before the end of the window; does nothing if it is closed."""

    process: ProcessId
    reason: str


Action: TypeAlias = Open | Close


class AutoOptions(Struct, frozen=True):
    """How memory is watched: read every `interval_s`; a window of tracing has `mode` and `window_s`."""

    interval_s: float = 10.0
    mode: TracingMode = TracingMode.EXACT
    window_s: float = 60.0
    growth: GrowthOptions = msgspec.field(default_factory=GrowthOptions)
    looks: LookOptions = msgspec.field(default_factory=LookOptions)


class _Watched(Struct):
    mode: TracingMode
    watch: GrowthWatch | None = None


class GrowthWatcher:
    """Watches processes.

    `read` returns the memory of one, None if it has none, and receives the last reading, 0 before the first;
    `descriptors` are counted, too. A process is added with `watch` (it is never attached to) or with `auto`.
    """

    def __init__(
        self,
        options: AutoOptions,
        read: Callable[[ProcessId, int], int | None] = read_anonymous_bytes,
        command: Callable[[int], str] = command_of,
        descriptors: DescriptorWatch | None = None,
    ) -> None:
        self._options = options
        self._descriptors = descriptors
        self._read = read
        self._command = command
        self._rounds: ReadingRounds[ProcessId] = ReadingRounds(options.interval_s)
        self._looks: LookSchedule[ProcessId] = LookSchedule(options.looks)
        self._watched: dict[ProcessId, _Watched] = {}
        self._new: list[ProcessId] = []
        self._growing: dict[ProcessId, WatchedGrowth] = {}
        self._closing: list[Close] = []
        self._ended: OrderedDict[int, tuple[ProcessId, int, float]] = OrderedDict()
        # Called with each reading: the process and its anonymous bytes.
        self.noticed: Callable[[ProcessId, int], None] = lambda _process, _bytes: None
        self._now_s = 0.0

    # The supervisor's side.

    def add(self, process: ProcessId, decision: Decision) -> None:
        """Watch a process from the next step on, or apply a new decision."""
        known = self._watched.get(process)
        if known is None:
            self._watched[process] = _Watched(decision.mode)
            self._new.append(process)
            return
        known.mode = decision.mode
        if decision.mode is not TracingMode.AUTO:
            if self._looks.look(process).state is WatchState.WINDOW:
                self._closing.append(Close(process, "no longer to be attached"))
            self._looks.forget(process)

    def remove(self, process: ProcessId) -> None:
        """Forget a process, except for its last reading."""
        watched = self._watched.pop(process, None)
        if watched is not None and watched.watch is not None:
            self._ended[process.pid] = process, watched.watch.bytes, self._now_s
            self._ended.move_to_end(process.pid)
            while len(self._ended) > _GONE_MAX:
                self._ended.popitem(last=False)
        self._growing.pop(process, None)
        if self._descriptors is not None:
            self._descriptors.forget(process)
        self._rounds.remove(process)
        self._looks.forget(process)

    def step(self, now_ns: int) -> Sequence[Action]:
        """Read the memory of due processes; returns the wanted windows."""
        now_s = self._now_s = now_ns / _NS_PER_S
        for process in self._new:
            if process in self._watched:
                self._watched[process].watch = GrowthWatch(now_s, self._options.growth)
                self._rounds.add(process, now_s)
        self._new.clear()
        for process in self._rounds.due(now_s, _READINGS_A_STEP):
            self._take_reading(process, self._watched[process], now_s)
        closing, self._closing = self._closing, []
        return [*closing, *map(self._open, self._looks.due_windows(now_s))]

    def opened(self, process: ProcessId, now_ns: int) -> None:
        """Record that the window is open."""
        self._looks.opened(process)

    def resumed(self, process: ProcessId, began_ns: int, now_ns: int) -> int:
        """Record a window that an earlier daemon opened; returns when it ends."""
        self._looks.resumed(process, now_ns / _NS_PER_S)
        return began_ns + round(self._options.window_s * _NS_PER_S)

    def closed(self, process: ProcessId, now_ns: int) -> None:
        """Record that the window is closed."""
        self._looks.closed(process, now_ns / _NS_PER_S)

    def failed(self, process: ProcessId, now_ns: int, reason: str, *, for_good: bool) -> None:
        """Record that the process could not be attached to."""
        self._looks.failed(process, now_ns / _NS_PER_S, reason, for_good=for_good)

    # Queries.

    def processes(self) -> tuple[WatchedProcess, ...]:
        """All watched processes, the fastest growers first, then the largest."""
        rows = map(self._row, self._watched)
        return tuple(sorted(rows, key=lambda row: (-row.growth_bytes_per_s, -row.anonymous_bytes, row.pid)))

    def last_reading(self, pid: int) -> tuple[ProcessId, int] | None:
        """The last process with this pid, and its anonymous bytes; None if none was watched recently."""
        for known, watched in self._watched.items():
            if known.pid == pid and watched.watch is not None:
                return known, watched.watch.bytes
        process, anonymous_bytes, gone_s = self._ended.get(pid, (None, 0, 0.0))
        is_late = self._now_s - gone_s > _GONE_S
        return None if process is None or is_late else (process, anonymous_bytes)

    def summary(self) -> WatchSummary:
        """The figures of all of them, and the fastest growers."""
        growing = sorted(self._growing, key=lambda process: -self._growing[process].bytes_per_s)
        return WatchSummary(
            watched=len(self._watched),
            growing=len(growing),
            windows_open=self._looks.count(WatchState.WINDOW),
            windows_opened_total=self._looks.opened_total,
            fastest=tuple(map(self._row, growing[:_FASTEST])),
        )

    # Internals.

    def _take_reading(self, process: ProcessId, watched: _Watched, now_s: float) -> None:
        watch = watched.watch
        anonymous_bytes = None if watch is None else self._read(process, watch.bytes)
        if anonymous_bytes is None or watch is None:
            # It is ending, which the supervisor will notice.
            self._rounds.was_read(process, now_s, changed=False)
            return
        change_bytes = abs(anonymous_bytes - watch.bytes)
        watch.add(now_s, anonymous_bytes)
        self.noticed(process, anonymous_bytes)
        self._take_verdict(process, watched.mode, watch.growth, now_s)
        changed = change_bytes >= _CHANGE * self._options.growth.min_bytes or watch.growth is not None
        if self._descriptors is not None:
            changed |= self._descriptors.look(process, now_s)
        self._rounds.was_read(process, now_s, changed=changed)

    def _take_verdict(
        self, process: ProcessId, mode: TracingMode, growth: WatchedGrowth | None, now_s: float
    ) -> None:
        if growth is not None and process not in self._growing:
            log.info(
                "process.growing",
                pid=process.pid,
                comm=self._command(process.pid),
                bytes_per_s=round(growth.bytes_per_s),
                window_s=growth.window_s,
            )
        if growth is not None:
            self._growing[process] = growth
        elif self._growing.pop(process, None) is not None:
            log.info("process.grows-no-more", pid=process.pid, comm=self._command(process.pid))
        if mode is TracingMode.AUTO:
            self._looks.note(process, now_s, growth.bytes_per_s if growth else 0.0)

    def _open(self, process: ProcessId) -> Open:
        growth = self._growing[process]
        reason = f"its memory grows by {growth.bytes_per_s:,.0f} bytes/s over {growth.window_s:g} s"
        return Open(process, self._options.mode, self._options.window_s, reason)

    def _row(self, process: ProcessId) -> WatchedProcess:
        watched = self._watched[process]
        growth = self._growing.get(process)
        look = self._looks.look(process)
        state = look.state
        if state is WatchState.WATCHED and growth is not None:
            state = WatchState.GROWING
        descriptors = self._descriptors
        return WatchedProcess(
            pid=process.pid,
            comm=self._command(process.pid),
            mode=watched.mode,
            state=state,
            anonymous_bytes=watched.watch.bytes if watched.watch else 0,
            growth_bytes_per_s=growth.bytes_per_s if growth else 0.0,
            windows=look.windows,
            next_look_s=max(0.0, look.next_look_s - self._now_s) if state is WatchState.PAUSED else None,
            reason=look.reason,
            descriptors=descriptors.count(process) if descriptors else None,
            descriptors_per_min=descriptors.growth_per_min(process) if descriptors else 0.0,
            descriptors_reason=descriptors.reason(process) if descriptors else "",
        )
