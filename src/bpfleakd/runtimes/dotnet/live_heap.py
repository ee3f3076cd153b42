"""The live heap of a .NET process after each collection, from events of 1 kB (GC keyword); and its limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from bpfleakd.runtimes.dotnet.diagnostics import Endpoint, Provider, Session
from bpfleakd.runtimes.dotnet.event_stream import EventStream
from bpfleakd.runtimes.dotnet.stream_jobs import COLLECTIONS_JOB, Collected
from bpfleakd.runtimes.runtime import LiveHeap
from bpfleakd.sandbox.helpers import Helpers

_GC_KEYWORD, _INFORMATIONAL = 0x1, 4
_BUFFER_MIB = 1

_NAME = b"GCHeapHardLimit"
# Since .NET 5, which still accepts the older one.
_PREFIXES, _OLDER_PREFIXES = (b"DOTNET_", b"COMPlus_"), (b"COMPlus_",)
_HEXADECIMAL = re.compile(rb"(?:0[xX])?([0-9a-fA-F]{1,16})")


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


def hard_limit_bytes(environment: Mapping[bytes, bytes], version: str) -> int | None:
    """The size in bytes beyond which the runtime refuses memory, if a variable sets it.

    `version` is the runtime's, "" if unknown. The process may have written over its environment.
    """
    major = version.partition(".")[0]
    is_older = major.isdecimal() and int(major) < 5
    for prefix in _OLDER_PREFIXES if is_older else _PREFIXES:
        found = _HEXADECIMAL.fullmatch(environment.get(prefix + _NAME, b""))
        if found:
            return int(found[1], 16) or None
    return None
