"""Which runtimes a process has. A new one adds its `detect` to DETECTORS."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from bpfleakd.model.mapping import Mapping
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.dotnet.runtime import detect_dotnet
from bpfleakd.runtimes.runtime import Runtime

__all__ = ["DETECTORS", "Detector", "detect"]

log = structlog.get_logger()

# The runtime of a process with these mappings; None if it is another.
Detector = Callable[[ProcessInfo, Sequence[Mapping]], Runtime | None]

DETECTORS: tuple[Detector, ...] = (detect_dotnet,)


def detect(
    process: ProcessInfo, mappings: Sequence[Mapping], detectors: Sequence[Detector] = DETECTORS
) -> tuple[Runtime, ...]:
    """The runtimes of a process. One that cannot be examined is logged: the process is native then."""
    found = []
    for detector in detectors:
        try:
            runtime = detector(process, mappings)
        except Exception:
            # It reads what the process controls.
            log.exception("runtime.not-examined", pid=process.id.pid, detector=detector.__module__)
            continue
        if runtime is not None:
            found.append(runtime)
    return tuple(found)
