"""The language runtimes of a traced process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import structlog

from bpfleakd.model.mapping import Mapping
from bpfleakd.model.method import MethodSource
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.detection import detect
from bpfleakd.runtimes.runtime import Runtime

__all__ = ["ProcessRuntimes"]

log = structlog.get_logger()


class ProcessRuntimes:
    """The runtimes of one process, from the attach or their loading to the end."""

    def __init__(self, process: ProcessInfo) -> None:
        self._process = process
        self._runtimes: list[Runtime] = []

    def __iter__(self) -> Iterator[Runtime]:
        return iter(self._runtimes)

    @property
    def methods(self) -> list[MethodSource]:
        """What names run-time compiled code."""
        return [runtime.methods for runtime in self._runtimes if runtime.methods is not None]

    @property
    def needs(self) -> tuple[str, ...]:
        """What would give more than is known."""
        return tuple(need for runtime in self._runtimes for need in runtime.needs)

    def follow(self, mappings: Sequence[Mapping]) -> bool:
        """Find runtimes that have come; returns whether there are some."""
        known = {runtime.name for runtime in self._runtimes}
        found = [one for one in detect(self._process, mappings) if one.name not in known]
        for runtime in found:
            log.info("runtime.found", pid=self._process.id.pid, runtime=runtime.name, version=runtime.version)
        self._runtimes += found
        return bool(found)

    def refresh(self, now_ns: int) -> None:
        """Learn what is new; nothing waits."""
        for source in self.methods:
            source.refresh(now_ns)

    def close(self) -> None:
        """Leave nothing behind in the process."""
        for runtime in self._runtimes:
            runtime.close()
        self._runtimes.clear()
