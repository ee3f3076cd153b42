"""Objects by type, of a program that counts its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bpfleakd.model.process import ProcessId
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import read_process
from bpfleakd.runtimes.cpython.pools import find_pools, pool_bytes, read_pools
from bpfleakd.runtimes.cpython.runtime import CPython, detect_cpython

COUNT = 4_999

PROGRAM = """
import collections, gc, sys, weakref

class Customer:
    def __init__(self, number):
        self.number = number
        self.name = f"customer {number}"

class Price:
    __slots__ = ("amount", "unit", "__weakref__")
    def __init__(self, amount):
        self.amount = amount + 0.5

class Point(collections.namedtuple("Point", "x y")):
    __slots__ = ()

class Meta(type):
    pass

class Special(metaclass=Meta):
    pass

count = int(sys.argv[1])
kept = []
for number in range(count):
    kept += [Customer(number), Price(number), Point(number, None), Special(), complex(number)]
# Holes in the pools.
for _ in range(count):
    [Customer(0), Price(0), Special()]
gone = [Price(number) for number in range(count)]
del gone[::2]
gc.collect()
def made():
    types = collections.Counter(type(one).__qualname__ for one in kept + gone)
    return {name: types[name] for name in ("Customer", "Price", "Point", "Special", "complex")}
print(made(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[tuple[int, dict[str, int]]]:
    """The pid, and how many objects there are of its classes."""
    file = tmp_path / "shop.py"
    file.write_text(PROGRAM)
    command = [sys.executable, str(file), str(COUNT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            yield child.pid, eval(child.stdout.readline())
        finally:
            child.kill()


def runtime_of(pid: int) -> CPython:
    found = detect_cpython(read_process(pid), read_mappings(pid))
    assert found is not None
    return found


def test_every_object_is_counted(program: tuple[int, dict[str, int]]) -> None:
    """Also those of classes with slots, of metaclasses, and none that is gone."""
    pid, made = program
    runtime = runtime_of(pid)
    assert runtime.types is not None
    assert runtime.types.price_s() == 0
    counted = {found.type: found for found in runtime.types.read()}
    runtime.close()
    for name, count in made.items():
        full_name = name if name == "complex" else f"__main__.{name}"
        assert counted[full_name].live_count == count
        assert counted[full_name].live_bytes >= count * 24
    assert counted["str"].live_count >= COUNT


def test_live_blocks_are_those_that_pymalloc_counts(program: tuple[int, dict[str, int]]) -> None:
    """The header's own count of each pool."""
    pid, _ = program
    size_bytes = pool_bytes(sys.version_info[:2])
    found = find_pools(pid, read_mappings(pid), size_bytes)
    assert sum(map(len, found.values())) > 50
    for size_class, addresses in found.items():
        for pools in read_pools(pid, size_class, addresses, size_bytes):
            counts = pools.words[:, 0] & np.uint64(0xFFFFFFFF)
            assert np.array_equal(pools.is_live.sum(axis=1), counts)


def test_a_process_that_ended_is_not_read(program: tuple[int, dict[str, int]]) -> None:
    """Its runtime is not found, and nothing is raised."""
    pid, _ = program
    process, mappings = read_process(pid), read_mappings(pid)
    subprocess.run(["kill", "-KILL", str(pid)], check=True)
    runtime = detect_cpython(process, mappings)
    assert runtime is None or runtime.frames is None or isinstance(process.id, ProcessId)
