"""What the API asks of the daemon. The daemon implements it; the HTTP side and its tests need no more.

Every method may raise a BpfleakdError, which crosses to the client as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bpfleakd.model import AddressSpaceReport, DaemonStats, LeakReport, SortKey, TracedProcess

__all__ = ["ProcessList", "Service", "SortKey"]


@dataclass(frozen=True, slots=True)
class ProcessList:
    """The answer to "what is being traced": an object rather than a list, so that it may grow."""

    processes: tuple[TracedProcess, ...]


class Service(Protocol):
    """The daemon, as the API sees it. `pid` is in the daemon's pid namespace."""

    async def attach(self, pid: int) -> TracedProcess:
        """Start to trace a process."""
        ...

    async def detach(self, pid: int) -> TracedProcess:
        """Stop to trace a process and return its last figures."""
        ...

    async def processes(self) -> tuple[TracedProcess, ...]:
        """Return every traced process."""
        ...

    async def report(self, pid: int, *, limit: int | None, sort: SortKey) -> LeakReport:
        """Return the largest `limit` call sites of a process (all of them for None)."""
        ...

    async def address_space(self, pid: int) -> AddressSpaceReport:
        """Return what the memory of a process is made of."""
        ...

    async def stats(self) -> DaemonStats:
        """Return the daemon's own figures."""
        ...
