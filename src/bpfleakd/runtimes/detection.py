"""Detects the runtimes of a process. A new runtime adds its `detect` to `detectors`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Mapping as Mapping_
from functools import partial

import structlog
from msgspec import Struct

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.cpython.runtime import detect_cpython
from bpfleakd.runtimes.dotnet.runtime import detect_dotnet
from bpfleakd.runtimes.jvm.runtime import detect_jvm
from bpfleakd.runtimes.runtime import NotStarted, Runtime
from bpfleakd.runtimes.unread import OTHER, detect_unread
from bpfleakd.runtimes.v8.runtime import detect_v8
from bpfleakd.sandbox.helpers import Helpers

log = structlog.get_logger()

# The runtime of a process with these mappings; None for any other process. Raises NotStarted.
Detector = Callable[[ProcessInfo, Sequence[Mapping]], Runtime | None]


def detectors(helpers: Helpers) -> dict[str, Detector]:
    """The detectors of all runtimes, by name; `helpers` parse data from runtimes."""
    return {
        ".NET": partial(detect_dotnet, helpers),
        "CPython": detect_cpython,
        "JVM": partial(detect_jvm, helpers),
        "V8": partial(detect_v8, helpers),
        OTHER: detect_unread,
    }


class Detected(Struct, frozen=True):
    """The detected runtimes. Incomplete if a runtime exists that has not started yet."""

    runtimes: tuple[Runtime, ...]
    is_complete: bool


def detect(
    process: ProcessInfo,
    mappings: Sequence[Mapping],
    detectors: Mapping_[str, Detector],
    known: Collection[str] = (),
) -> Detected:
    """The runtimes of a process, by all `detectors` except those of the `known` names.

    A runtime that cannot be examined is logged, and its process treated as native.
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
            # It reads data that the process controls.
            log.exception("runtime.not-examined", pid=process.id.pid, runtime=name)
            continue
        if runtime is not None:
            found.append(runtime)
    return Detected(tuple(found), is_complete)
