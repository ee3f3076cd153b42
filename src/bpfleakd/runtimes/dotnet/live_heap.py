"""The live heap after each collection of a .NET process, from events of the GC keyword: a kilobyte each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bpfleakd.runtimes.dotnet.diagnostics import Endpoint, Provider, Session
from bpfleakd.runtimes.dotnet.event_stream import EventStream
from bpfleakd.runtimes.dotnet.stream_jobs import COLLECTIONS_JOB, Collected
from bpfleakd.runtimes.runtime import LiveHeap
from bpfleakd.sandbox.helpers import Helpers

_GC_KEYWORD, _INFORMATIONAL = 0x1, 4
_BUFFER_MIB = 1


class DotnetLiveHeap:
    """The collections of one process while it is traced.

    `last_bytes` is the heap after the last one, `read_bytes` the size of the events read.
    """

    def __init__(self, helpers: Helpers, endpoint: Callable[[], Endpoint], not_before_ns: int) -> None:
        self._endpoint = endpoint
        self._stream = EventStream(helpers, COLLECTIONS_JOB, Collected, self._start, not_before_ns)
        self._collections = 0
        self.last_bytes: int | None = None
        self.read_bytes = 0

    @property
    def failure(self) -> str | None:
        """Why collections are unknown, if they are."""
        return self._stream.failure

    @property
    def watched_since_ns(self) -> int | None:
        """Since when collections are reported; None if they are not."""
        return self._stream.open_since_ns

    def read(self, now_ns: int) -> Sequence[LiveHeap]:
        """The collections since the last call, oldest first."""
        found: list[LiveHeap] = []
        for answer in self._stream.read(now_ns):
            self.read_bytes += answer.read_bytes
            for one in answer.collections:
                self._collections += 1
                self.last_bytes = one.heap_bytes
                found.append(
                    LiveHeap(one.at_ns, one.live_bytes, self._collections, one.is_full, one.least_bytes)
                )
        return found

    def close(self) -> None:
        """End the session."""
        self._stream.close()

    def _start(self) -> Session:
        quiet = Provider(_GC_KEYWORD, _INFORMATIONAL)
        return self._endpoint().start([quiet], buffer_mib=_BUFFER_MIB, rundown=False)
