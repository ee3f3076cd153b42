"""The interpreters of running processes, this one included."""

from __future__ import annotations

from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import read_process
from bpfleakd.runtimes.cpython.heap_reading import HeapTarget
from bpfleakd.runtimes.cpython.runtime import CPython, detect_cpython


def runtime_of(pid: int) -> CPython:
    """The runtime of a process that has one; the caller closes it."""
    found = detect_cpython(read_process(pid), read_mappings(pid))
    assert found is not None
    return found


def target_of(pid: int) -> HeapTarget:
    """Where to read its objects."""
    found = runtime_of(pid)
    assert found.types is not None
    found.close()
    return found.types._target
