"""Which runtimes a process has. A new one adds its `detect` to DETECTORS."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Mapping as Mapping_
from types import MappingProxyType

import structlog

from bpfleakd.model.mapping import Mapping
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.cpython.runtime import detect_cpython
from bpfleakd.runtimes.dotnet.runtime import detect_dotnet
from bpfleakd.runtimes.jvm.runtime import detect_jvm
from bpfleakd.runtimes.runtime import Runtime

__all__ = ["DETECTORS", "Detector", "detect"]

log = structlog.get_logger()

# The runtime of a process with these mappings; None if it is another.
Detector = Callable[[ProcessInfo, Sequence[Mapping]], Runtime | None]

# By the name of the runtime.
DETECTORS: dict[str, Detector] = {".NET": detect_dotnet, "CPython": detect_cpython, "JVM": detect_jvm}


def detect(
    process: ProcessInfo,
    mappings: Sequence[Mapping],
    known: Collection[str] = (),
    detectors: Mapping_[str, Detector] = MappingProxyType(DETECTORS),
) -> tuple[Runtime, ...]:
    """The runtimes of a process but those `known` by name. One that cannot be examined is logged: the process
    is native then.
    """
    found = []
    for name, detector in detectors.items():
        if name in known:
            continue
        try:
            runtime = detector(process, mappings)
        except Exception:
            # It reads what the process controls.
            log.exception("runtime.not-examined", pid=process.id.pid, runtime=name)
            continue
        if runtime is not None:
            found.append(runtime)
    return tuple(found)
