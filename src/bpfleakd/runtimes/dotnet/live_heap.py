"""What each collection of a .NET process leaves alive: events of the GC keyword, a kilobyte a collection."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from bpfleakd.runtimes.dotnet import events
from bpfleakd.runtimes.dotnet.diagnostics import Endpoint, Provider, Session
from bpfleakd.runtimes.dotnet.event_stream import EventStream
from bpfleakd.runtimes.runtime import LiveHeap

__all__ = ["DotnetLiveHeap"]

_GC_KEYWORD, _INFORMATIONAL = 0x1, 4
_BUFFER_MIB = 1


class DotnetLiveHeap:
    """The collections of one process, while it is traced. `last_bytes` is the heap after the last one."""

    def __init__(self, endpoint: Callable[[], Endpoint], not_before_ns: int) -> None:
        self._endpoint = endpoint
        self._stream = EventStream(self._start, not_before_ns)
        self._collections = 0
        self.last_bytes: int | None = None

    @property
    def failure(self) -> str | None:
        """Why nothing is known of collections, if so."""
        return self._stream.failure

    @property
    def watched_since_ns(self) -> int | None:
        """Since when collections are told; None if they are not."""
        return self._stream.open_since_ns

    def read(self, now_ns: int) -> Sequence[LiveHeap]:
        """The collections since the last call, oldest first."""
        found: list[LiveHeap] = []
        for event in self._stream.read(now_ns):
            if event.number != events.GC_HEAP_STATS:
                continue
            try:
                stats = events.heap_stats(event)
            except struct.error:
                continue
            self._collections += 1
            self.last_bytes = stats.live_bytes
            # All objects were looked at if any of the oldest generation were found alive.
            live_bytes = stats.promoted_bytes if stats.is_full else stats.live_bytes
            found.append(LiveHeap(event.time_ns, live_bytes, self._collections, stats.is_full))
        return found

    def close(self) -> None:
        """End the session."""
        self._stream.close()

    def _start(self) -> Session:
        quiet = Provider(_GC_KEYWORD, _INFORMATIONAL)
        return self._endpoint().start([quiet], buffer_mib=_BUFFER_MIB, rundown=False)
