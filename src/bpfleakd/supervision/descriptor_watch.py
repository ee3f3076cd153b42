"""The file descriptors of watched processes: counted at each look, and judged like memory.

A count takes 5 us; more before Linux 6.2, where the directory is listed. The kinds of descriptors are
determined once, when their number begins to grow, outside of the tracing loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import structlog
from msgspec.structs import replace

from bpfleakd.model.process import ProcessId
from bpfleakd.process.descriptors import count_descriptors, uses_of
from bpfleakd.process.process import command_of
from bpfleakd.supervision.growth_watch import GrowthOptions, GrowthWatch, WatchedGrowth
from bpfleakd.tracing.background import Background

log = structlog.get_logger()

# A smaller increase is not worth a report, however steady.
_GROWN_MIN = 10
_SAMPLE_MAX = 100
_JOBS_MAX = 1


class DescriptorWatch:
    """The watched processes that were counted. `options` are those for memory."""

    def __init__(
        self,
        options: GrowthOptions,
        count: Callable[[int], int | None] = count_descriptors,
        command: Callable[[int], str] = command_of,
    ) -> None:
        self._options = replace(options, min_bytes=_GROWN_MIN)
        self._count = count
        self._command = command
        self._watches: dict[ProcessId, GrowthWatch] = {}
        self._growing: dict[ProcessId, WatchedGrowth] = {}
        self._uses: dict[ProcessId, str] = {}
        self._background = Background("watched-descriptors", _JOBS_MAX)

    def look(self, process: ProcessId, now_s: float) -> bool:
        """Count the descriptors of a process; returns whether they grow."""
        count = self._count(process.pid)
        if count is None:
            return False
        watch = self._watches.get(process)
        if watch is None:
            watch = self._watches[process] = GrowthWatch(now_s, self._options)
        watch.add(now_s, count)
        growth = watch.growth
        if growth is None:
            self._growing.pop(process, None)
            self._uses.pop(process, None)
            return False
        is_new = process not in self._growing
        self._growing[process] = growth
        if is_new:
            self._background.begin(str(process), partial(self._look_closer, process, growth.from_bytes))
            comm, reason = self._command(process.pid), self.reason(process)
            log.warning("descriptors.growing", pid=process.pid, comm=comm, count=count, reason=reason)
        return True

    def forget(self, process: ProcessId) -> None:
        """Forget a process that has ended or is no longer watched."""
        self._watches.pop(process, None)
        self._growing.pop(process, None)
        self._uses.pop(process, None)

    def count(self, process: ProcessId) -> int | None:
        """The number at the last look; None before the first."""
        watch = self._watches.get(process)
        return watch.bytes if watch is not None else None

    def growth_per_min(self, process: ProcessId) -> float:
        """The persistent growth per minute; 0 without growth."""
        growth = self._growing.get(process)
        return round(growth.bytes_per_s * 60, 1) if growth is not None else 0.0

    def reason(self, process: ProcessId) -> str:
        """A sentence that they grow; "" if they do not."""
        if process not in self._growing:
            return ""
        words = f"file descriptors grow: {self.growth_per_min(process):,.0f}/min"
        uses = self._uses.get(process)
        return f"{words}, {uses}" if uses else words

    def _look_closer(self, process: ProcessId, first: int) -> None:
        try:
            uses = uses_of(process.pid, first, _SAMPLE_MAX)
        except OSError:
            return  # it has just ended
        if uses and process in self._growing:
            ((what, count),) = uses.most_common(1)
            self._uses[process] = f"{count / uses.total():.0%} {what}"
