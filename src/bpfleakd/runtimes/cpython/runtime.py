"""CPython as a runtime of a traced process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bpfleakd import pid_namespace
from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.files.mapped_files import FileKey, open_mapped
from bpfleakd.process.proc_text import status_fields
from bpfleakd.process.process import ProcessInfo
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.code_object import CodeObjectReader
from bpfleakd.runtimes.cpython.collector import read_collector
from bpfleakd.runtimes.cpython.frames import ArenaCode, PythonFrames
from bpfleakd.runtimes.cpython.heap_reading import HeapTarget, SharedReader
from bpfleakd.runtimes.cpython.interpreter import (
    Interpreter,
    UntrustedInterpreter,
    find_interpreter,
    may_hold_interpreter,
)
from bpfleakd.runtimes.cpython.object_heap import ObjectHeap
from bpfleakd.runtimes.cpython.pools import arena_bytes
from bpfleakd.runtimes.cpython.types import PythonTypes
from bpfleakd.runtimes.cpython.walker import python_walk
from bpfleakd.runtimes.runtime import NotStarted

PROC = Path("/proc")

# Files without an interpreter: a process with many libraries may load another one at any time.
_foreign: dict[FileKey, None] = {}
_FOREIGN_MAX = 4_096
# One object heap is read at a time, among all processes.
_reader = SharedReader()


class CPython:
    """A trusted interpreter, or the reason why it is not trusted: then it has no frames."""

    name = "CPython"
    methods = None
    code_tables = ()
    code = None

    def __init__(self, memory: RemoteMemory, pid: int, found: Interpreter | UntrustedInterpreter) -> None:
        """Takes ownership of `memory`."""
        self._memory = memory
        self._reason: str | None = None
        self.version = "?"
        self.frames: PythonFrames | None = None
        self.types: PythonTypes | None = None
        self.live_heap: ObjectHeap | None = None
        self.allocations: ObjectHeap | None = None
        if isinstance(found, UntrustedInterpreter):
            self._reason = str(found)
            return
        self.version = found.version
        try:
            walk = python_walk(found, _namespace(pid))
        except (OSError, ValueError) as error:
            self._reason = str(error)
            return
        reader = CodeObjectReader(memory, found.layout, found.types)
        arena = ArenaCode(arena_bytes(found.layout.version), found.text)
        self.frames = PythonFrames(reader, f"python{self.version}", walk, arena)
        target = HeapTarget(pid, found.layout, found.types)
        self.types = PythonTypes(target)
        collector = partial(read_collector, memory, found.layout, found.runtime)
        self.live_heap = self.allocations = ObjectHeap(target, collector, time.monotonic_ns(), _reader)

    @property
    def notes(self) -> Sequence[str]:
        """Why there are no Python frames, or no figures on the heap."""
        heap = self.live_heap
        if heap is not None and heap.failure is not None:
            return (f"Python's object heap is not read: {heap.failure}",)
        return (f"no Python frames: {self._reason}",) if self._reason else ()

    def close(self) -> None:
        """Close the access to the process' memory, and drop known names."""
        self.frames = None
        if self.live_heap is not None:
            self.live_heap.close()
        self._memory.close()


def detect_cpython(process: ProcessInfo, mappings: Sequence[Mapping]) -> CPython | None:
    """The interpreter of a process; None if it has none, or if the process has ended. Raises NotStarted."""
    pid = process.id.pid
    try:
        memory = RemoteMemory(pid)
    except OSError:
        return None
    found: Interpreter | UntrustedInterpreter | None
    try:
        found = find_interpreter(
            mappings,
            partial(_open_image, pid),
            memory,
            lambda: _tids(pid),
        )
    except UntrustedInterpreter as error:
        found = error
    except NotStarted:
        memory.close()
        raise
    if found is None:
        memory.close()
        return None
    return CPython(memory, pid, found)


def _namespace(pid: int) -> os.stat_result | None:
    """The pid namespace of a process, None if it is the daemon's. Raises OSError."""
    namespace = os.stat(PROC / str(pid) / "ns/pid")
    return None if namespace.st_ino == pid_namespace.own().st_ino else namespace


@contextmanager
def _open_image(pid: int, mapping: Mapping) -> Iterator[ElfImage]:
    """The mapped file. Raises OSError, or BadElf, also for a file that certainly has no interpreter."""
    file = open_mapped(pid, mapping, str(pid))
    if file.key in _foreign:
        raise BadElf("it holds no interpreter")
    with ElfImage.open(file.descriptor) as image:
        if not may_hold_interpreter(image, mapping.path):
            _foreign[file.key] = None
            if len(_foreign) > _FOREIGN_MAX:
                del _foreign[next(iter(_foreign))]
            raise BadElf("it holds no interpreter")
        yield image


def _tids(pid: int) -> set[int]:
    """The threads of a process, in its own pid namespace (NSpid of proc_pid_status(5))."""
    found = (status_fields(task).get("NSpid") for task in (PROC / str(pid) / "task").iterdir())
    return {int(numbers.split()[-1]) for numbers in found if numbers}
