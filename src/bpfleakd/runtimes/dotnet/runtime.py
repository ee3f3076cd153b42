"""The .NET runtime in one traced process."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.environment import read_environment
from bpfleakd.process.files.rooted_open import root_of
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.dotnet.allocations import DotnetAllocations
from bpfleakd.runtimes.dotnet.diagnostics import DiagnosticsError, Endpoint, find_endpoint
from bpfleakd.runtimes.dotnet.heap_types import DotnetTypes
from bpfleakd.runtimes.dotnet.live_heap import DotnetLiveHeap, hard_limit_bytes
from bpfleakd.runtimes.dotnet.method_look import Methods, take_rundown
from bpfleakd.runtimes.dotnet.methods import DotnetMethods
from bpfleakd.runtimes.dotnet.source_lines import PdbLines
from bpfleakd.sandbox.helpers import Helpers

_LIBRARY = "libcoreclr.so"
_SHARED_FRAMEWORK = re.compile(r"/shared/Microsoft\.NETCore\.App/(\d[\w.+-]{0,40})/")
# The start time of .NET, tripled for a busy machine.
_START_UP_NS = 3_000_000_000


class DotnetRuntime:
    """Names, live heap and types of one .NET process. Nothing here waits for the process."""

    name = ".NET"
    code_tables = ()
    code = None

    def __init__(
        self,
        helpers: Helpers,
        process: ProcessInfo,
        version: str,
        now_ns: int,
        proc: Path = Path("/proc"),
    ) -> None:
        self.version = version
        self.heap_limit_bytes = hard_limit_bytes(read_environment(process.id.pid, proc), version)
        self._helpers = helpers
        self._process = process
        self._proc = proc
        started_ns = process.id.start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        # The start is counted from boot including suspend; the pause is not.
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - started_ns
        settled_ns = now_ns + max(0, _START_UP_NS - age_ns)
        lines = PdbLines(helpers, root_of(process.id.pid, proc))
        self._methods = DotnetMethods(self._look, lines, settled_ns, process.uid)
        self._live_heap = DotnetLiveHeap(helpers, self._endpoint, settled_ns)
        self._allocations = DotnetAllocations(helpers, self._endpoint)
        self._types = DotnetTypes(helpers, self._endpoint, lambda: self._live_heap.last_bytes)

    @property
    def methods(self) -> DotnetMethods:
        """Its methods."""
        return self._methods

    @property
    def frames(self) -> None:
        """All frames have an address."""
        return None

    @property
    def live_heap(self) -> DotnetLiveHeap:
        """What its collections leave alive."""
        return self._live_heap

    @property
    def allocations(self) -> DotnetAllocations:
        """The samples of retained objects."""
        return self._allocations

    @property
    def types(self) -> DotnetTypes:
        """The objects of its heap."""
        return self._types

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on missing data, with the reasons."""
        missing = {
            "its methods have no names": self._methods.failure,
            "its collections are unknown": self._live_heap.failure,
            "the functions that allocate surviving objects are unknown": self._allocations.failure,
        }
        return [f"of .NET, {what}: {failure}" for what, failure in missing.items() if failure]

    def close(self) -> None:
        """Close the sessions, which ends them in the process."""
        self._live_heap.close()
        self._allocations.close()

    def _look(self) -> Methods:
        return take_rundown(self._helpers, self._endpoint())

    def _endpoint(self) -> Endpoint:
        process = self._process
        return find_endpoint(process.id.pid, process.namespace_pid, process.id.start_ticks, self._proc)


def detect_dotnet(
    helpers: Helpers, process: ProcessInfo, mappings: Sequence[Mapping]
) -> DotnetRuntime | None:
    """The .NET runtime of a process that maps one, or that has its socket (a single-file program)."""
    path = next((m.path for m in mappings if os.path.basename(m.path) == _LIBRARY), None)
    if path is None:
        try:
            find_endpoint(process.id.pid, process.namespace_pid, process.id.start_ticks, exactly=True)
        except DiagnosticsError:
            return None
    found = _SHARED_FRAMEWORK.search(path or "")
    return DotnetRuntime(helpers, process, found[1] if found else "", time.monotonic_ns())
