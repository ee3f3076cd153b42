"""Which runtimes a process has. A new one adds its `detect` to DETECTORS."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Mapping as Mapping_
from dataclasses import dataclass
from types import MappingProxyType

import structlog

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.cpython.runtime import detect_cpython
from bpfleakd.runtimes.dotnet.runtime import detect_dotnet
from bpfleakd.runtimes.jvm.runtime import detect_jvm
from bpfleakd.runtimes.runtime import NotStarted, Runtime
from bpfleakd.runtimes.v8.runtime import detect_v8

__all__ = ["DETECTORS", "Detected", "Detector", "detect"]

log = structlog.get_logger()

# The runtime of a process with these mappings; None if it is another. Raises NotStarted.
Detector = Callable[[ProcessInfo, Sequence[Mapping]], Runtime | None]

# By the name of the runtime.
DETECTORS: dict[str, Detector] = {
    ".NET": detect_dotnet,
    "CPython": detect_cpython,
    "JVM": detect_jvm,
    "V8": detect_v8,
}


@dataclass(frozen=True, slots=True)
class Detected:
    """What was found. Not complete: a runtime is there that has not started yet."""

    runtimes: tuple[Runtime, ...]
    is_complete: bool


def detect(
    process: ProcessInfo,
    mappings: Sequence[Mapping],
    known: Collection[str] = (),
    detectors: Mapping_[str, Detector] = MappingProxyType(DETECTORS),
) -> Detected:
    """The runtimes of a process but those `known` by name. One that cannot be examined is logged: the process
    is native then.
    """
    found = []
    is_complete = True
    for name, detector in detectors.items():
        if name in known:
            continue
        try:
            runtime = detector(process, mappings)
        except NotStarted:
            is_complete = False
            continue
        except Exception:
            # It reads what the process controls.
            log.exception("runtime.not-examined", pid=process.id.pid, runtime=name)
            continue
        if runtime is not None:
            found.append(runtime)
    return Detected(tuple(found), is_complete)
