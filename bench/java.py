"""What reading a JVM from outside costs the daemon: its structures, its code, its names."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.figures import Benchmark
from bench.runner import run_alone
from bpfleakd.elf.image import ElfImage
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.code_cache import CodeCache, CodeSnapshot
from bpfleakd.runtimes.jvm.machine import Machine, find_library, read_machine
from bpfleakd.runtimes.jvm.names import JavaNames
from bpfleakd.runtimes.jvm.unwinding import code_tables

_SOURCE = Path(__file__).parent / "programs" / "ManyMethods.java"
_ROUNDS = 9
_NAMED = 500

T = TypeVar("T")


def measure(short: bool) -> Benchmark:
    """A JVM with thousands of compiled methods, read as at each tick."""
    benchmark = Benchmark("java", "A Java virtual machine, read from outside", short)
    with _machine() as pid, contextlib.closing(RemoteMemory(pid)) as memory:
        structures: list[float] = []
        machine = _timed(structures, lambda: _read(pid, memory))
        benchmark.add("structures, once at the attach", "ms", [took * 1e3 for took in structures])
        cache = CodeCache(pid, memory, machine.layout)
        whole, unchanged, tables, named = [[] for _ in range(4)]
        snapshot = CodeSnapshot(())
        for _ in range(2 if short else _ROUNDS):
            snapshot = _timed(whole, cache.read)
            _timed(unchanged, partial(cache.read, snapshot))
            _timed(tables, partial(code_tables, snapshot))
        _name(memory, machine, snapshot, named)
        count = f"{len(snapshot.blobs):,} blobs"
        benchmark.add(f"{count}, all read", "ms", [took * 1e3 for took in whole])
        benchmark.add(f"{count}, none came or went", "ms", [took * 1e3 for took in unchanged])
        benchmark.add(f"{count}, made unwind tables", "ms", [took * 1e3 for took in tables])
        benchmark.add("a return address named, the first time", "us", [took * 1e6 for took in named])
    return benchmark


def _read(pid: int, memory: RemoteMemory) -> Machine:
    library = find_library(read_mappings(pid))
    assert library is not None, "no libjvm.so"

    @contextmanager
    def open_image(mapping: Mapping) -> Iterator[ElfImage]:
        with ElfImage.open(mapping.path) as image:
            yield image

    return read_machine(library, open_image, memory)


def _name(memory: RemoteMemory, machine: Machine, snapshot: CodeSnapshot, named: list[float]) -> None:
    names = JavaNames(memory, machine.layout)
    names.snapshot = snapshot
    for start in snapshot.starts[:_NAMED].tolist():
        _timed(named, partial(names.find, start))


def _timed(samples: list[float], work: Callable[[], T]) -> T:
    began_s = time.perf_counter()
    result = work()
    samples.append(time.perf_counter() - began_s)
    return result


@contextmanager
def _machine() -> Iterator[int]:
    """A Java program that has finished compiling; killed at the end."""
    program = subprocess.Popen(["java", str(_SOURCE)], stdout=subprocess.PIPE)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        yield program.pid
    finally:
        program.kill()
        program.communicate()


if __name__ == "__main__":
    run_alone(measure)
