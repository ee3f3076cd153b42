"""Objects by type, of a program that counts its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import asdict

from bpfleakd import errors
from bpfleakd.model.process import ProcessId
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import read_process
from bpfleakd.runtimes.cpython.heap_reading import HeapReading, HeapRequest
from bpfleakd.runtimes.cpython.heap_worker import main
from bpfleakd.runtimes.cpython.pools import find_pools, pool_bytes, read_pools
from bpfleakd.runtimes.cpython.runtime import detect_cpython

from ...waiting import until
from .interpreters import target_of

COUNT = 4_999
# /proc/PID/syscall of a process that waits in read(2): it makes no objects meanwhile.
READ = "0 "

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

class Gone:
    __slots__ = ("one", "other", "third", "fourth")

NAMES = ("Customer", "Price", "Point", "Special", "complex")
count = int(sys.argv[1])
kept = []
big = [("x" * (600 + n), b"y" * (700 + n), tuple(range(n, n + 80)), 1 << (8000 + n)) for n in range(257)]
big += [[("\\u20ac" * 300 + str(number)) for number in range(257)]]
for number in range(count):
    kept += [Customer(number), Price(number), Point(number, None), Special(), complex(number)]
# Holes in the pools.
for _ in range(count):
    [Customer(0), Price(0), Special()]
gone = [Price(number) for number in range(count)]
del gone[::2]
gc.collect()
# The memory of these objects becomes that of lists, each with one pointer in front of what was there.
former = [Gone() for _ in range(20 * count)]
del former
rows = [[None] for _ in range(20 * count)]
def made():
    types = collections.Counter(type(one).__qualname__ for one in kept + gone)
    types["large"] = sum(sys.getsizeof(one) > 512 for group in big for one in group)
    types["types"] = sum(isinstance(one, type) and type(one) is type for one in gc.get_objects())
    return {name: types[name] for name in (*NAMES, "large", "types")}
print(made(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[tuple[int, dict[str, int]]]:
    """The pid, and the number of objects of its classes."""
    file = tmp_path / "shop.py"
    file.write_text(PROGRAM)
    command = [sys.executable, str(file), str(COUNT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            made = eval(child.stdout.readline())
            until(lambda: Path(f"/proc/{child.pid}/syscall").read_text().startswith(READ))
            yield child.pid, made
        finally:
            child.kill()


def reading_of(pid: int, **options: object) -> HeapReading:
    """As the child makes it."""
    request = HeapRequest(target_of(pid), **options)  # type: ignore[arg-type]
    return msgspec.convert(main(asdict(request)), HeapReading, strict=False)


@pytest.mark.parametrize("options", [{}, {"stop_s": 20.0}, {"stop_s": 1e-6}, {"twice": True}])
def test_every_object_is_counted(program: tuple[int, dict[str, int]], options: dict[str, object]) -> None:
    """Also those of classes with slots, of metaclasses, and none that is gone; held, or not for long, or
    not.
    """
    pid, made = program
    reading = reading_of(pid, **options)
    counted = {name: (size, count) for name, size, count in reading.counts}
    for name in ("Customer", "Price", "Point", "Special", "complex"):
        size, count = counted[name if name == "complex" else f"__main__.{name}"]
        assert count == made[name]
        assert size >= count * 24
    assert "__main__.Gone" not in counted
    assert counted["str"][1] >= COUNT
    assert reading.live_bytes == sum(size for size, _count in counted.values())


def test_large_objects_are_counted(program: tuple[int, dict[str, int]]) -> None:
    """Those that are in no pool: exactly as many more."""
    pid, made = program
    small = {name: count for name, _size, count in reading_of(pid).counts}
    all_ = {name: count for name, _size, count in reading_of(pid, large=True).counts}
    more = {name: all_[name] - small.get(name, 0) for name in all_}
    # Names, docstrings and tables of modules are large, too.
    for name, count in (("str", 514), ("bytes", 257), ("tuple", 257), ("int", 257)):
        assert more[name] >= count
    assert sum(more[name] for name in ("str", "bytes", "tuple", "int")) >= made["large"]
    assert more["int"] == 257
    # Classes of C have theirs in the variables of a file, some without an initial value, which count here.
    assert made["types"] <= all_["type"] <= made["types"] + 20


def test_containers_and_what_is_in_them(program: tuple[int, dict[str, int]]) -> None:
    """By their number of values, and the types of those that came last."""
    pid, _made = program
    (kept,) = (one for one in reading_of(pid).containers if one.size == 5 * COUNT)
    assert kept.kind == "list"
    reading = reading_of(pid, watched=(kept.address,))
    assert set(reading.value_types[kept.address]) == {
        "__main__.Customer",
        "__main__.Price",
        "__main__.Point",
        "__main__.Special",
        "complex",
    }


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


def test_a_process_with_types_without_end_is_not_read(
    program: tuple[int, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forged heap may have as many as words, and each takes time and memory."""
    monkeypatch.setattr("bpfleakd.runtimes.cpython.object_types._TYPES_MAX", 20)
    with pytest.raises(errors.TargetRefused, match="more than 20 types"):
        reading_of(program[0])
