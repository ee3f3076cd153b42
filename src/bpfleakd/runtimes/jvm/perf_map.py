"""The perf map that a JVM writes on request: `Compiler.perfmap` over its attach socket.

It contains the names of all currently compiled code, and of stubs. The JVM writes it to the target's /tmp as
the target's user.

src/hotspot/share/code/codeCache.cpp (write_perf_map), from JDK 17 on
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.jvm.attach import JavaAttach
from bpfleakd.runtimes.jvm.written_file import file_written

_PROC = Path("/proc")
_COMMAND = "Compiler.perfmap"
_TIMEOUT_S = 30.0


class JavaPerfMap:
    """The perf map of one process, as long as it takes to open it."""

    command = _COMMAND

    def __init__(self, process: ProcessInfo, attach: JavaAttach, proc: Path = _PROC) -> None:
        self._process = process
        self._attach = attach
        self._proc = proc

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Let the JVM write it; the context removes it at its end. Raises AttachError.

        Waits for the process.
        """
        name = f"perf-{self._process.namespace_pid}.map"
        with file_written(self._process, name, lambda: self._attach.run(_COMMAND, _TIMEOUT_S), self._proc):
            yield
