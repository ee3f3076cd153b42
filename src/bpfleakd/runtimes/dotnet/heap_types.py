"""The objects of a .NET heap by type, exactly: by a full collection and a walk over all objects.

The process is stopped for both, so this happens on request only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bpfleakd.runtimes.dotnet.diagnostics import DiagnosticsError, Endpoint, Provider
from bpfleakd.runtimes.dotnet.stream_jobs import HEAP_TYPES_JOB, ROWS_AT_A_TIME, CountedTypes
from bpfleakd.runtimes.runtime import TypeCount
from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.symbols.dotnet_names import type_name

# GC, GCHeapDump, Type, GCHeapAndTypeNames: the walk begins with a session that has them.
_WALK = Provider(0x198_0001, 5)
# An object takes 32 bytes. Objects that do not fit are missing in the counts.
_BUFFER_MIB = 256
_TIMEOUT_S = 60.0
# Measured: 3.5 s for 232 MB of 3.0 million objects.
_S_PER_BYTE = 3.5 / (232 << 20)
_S_AT_LEAST = 0.05
_TYPES_MAX = 200_000


class DotnetTypes:
    """Counts the objects of one process. `heap_bytes` is the size of its heap, None if unknown."""

    work = "a full collection and a walk over all objects"
    includes_garbage = False

    def __init__(
        self, helpers: Helpers, endpoint: Callable[[], Endpoint], heap_bytes: Callable[[], int | None]
    ) -> None:
        self._helpers = helpers
        self._endpoint = endpoint
        self._heap_bytes = heap_bytes
        # The runtime sends the name of a type once.
        self._names: dict[int, str] = {}

    def price_s(self) -> float | None:
        """How long the process will be stopped, in seconds, approximately; None if unknown."""
        heap_bytes = self._heap_bytes()
        return None if heap_bytes is None else max(_S_AT_LEAST, heap_bytes * _S_PER_BYTE)

    def read(self) -> Sequence[TypeCount]:
        """All types, most bytes first. Raises DiagnosticsError."""
        try:
            self._helpers.prepare()
            session = self._endpoint().start([_WALK], buffer_mib=_BUFFER_MIB, rundown=False)
            try:
                return self._counted(session.fileno())
            finally:
                session.close()
        except HelperFailed as error:
            raise DiagnosticsError(f"the list of its objects cannot be read: {error}") from error

    def _counted(self, session: int) -> list[TypeCount]:
        sums: dict[str, tuple[int, int]] = {}
        answers = self._helpers.answers(
            HEAP_TYPES_JOB,
            self._names,
            [session],
            CountedTypes,
            limit_s=_TIMEOUT_S,
            answers_max=3 * _TYPES_MAX // ROWS_AT_A_TIME,
        )
        for answer in answers:
            self._names |= answer.names
            if answer.is_last:
                break
            for name, size_bytes, count in answer.sums:
                shown = type_name(name)
                before = sums.get(shown, (0, 0))
                sums[shown] = before[0] + size_bytes, before[1] + count
        else:
            raise DiagnosticsError(f"the list of its objects took longer than {_TIMEOUT_S:.0f} s")
        found = [TypeCount(name, *figures) for name, figures in sums.items()]
        return sorted(found, key=lambda one: (-one.live_bytes, one.type))
