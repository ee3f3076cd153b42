"""The counters of a machine, as they lie in its memory, and as a process may claim that they do."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.runtimes.jvm.perf_data import PerfData

START = 0x7F00_0000_0000
BOUNDS = 0x1000, 0x2000
MAGIC = bytes.fromhex("cafec0c0")


class Memory:
    """The part of a process' memory with counters, and the two words that point to it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def word(self, address: int) -> int:
        return {BOUNDS[0]: START, BOUNDS[1]: START + len(self._data)}[address]

    def read(self, address: int, size_bytes: int) -> bytes:
        assert (address, size_bytes) == (START, len(self._data))
        return self._data


def entry(name: bytes, value: int | bytes) -> bytes:
    """PerfDataEntry: header, name, value."""
    length, kind, data = (
        (0, b"J", struct.pack("<q", value)) if isinstance(value, int) else (32, b"B", value.ljust(32, b"\0"))
    )
    value_at = -(-(20 + len(name) + 1) // 8) * 8
    head = struct.pack("<iiicbbbi", value_at + len(data), 20, length, kind, 0, 0, 0, value_at)
    return (head + name).ljust(value_at, b"\0") + data


def counters(*entries: bytes) -> bytes:
    head = MAGIC + struct.pack("<bbbbiiqII", 0, 2, 0, 1, 0, 0, 0, 32, len(entries))
    return head + b"".join(entries)


def test_numbers_and_texts() -> None:
    """The requested counters, if they exist."""
    memory = Memory(counters(entry(b"sun.gc.cause", b"No GC"), entry(b"sun.gc.collector.0.invocations", 17)))
    data = PerfData(memory, *BOUNDS)
    found = data.read(("sun.gc.cause", "sun.gc.collector.0.invocations", "sun.gc.nothing"))
    assert found == {"sun.gc.cause": "No GC", "sun.gc.collector.0.invocations": 17}


def test_a_machine_without_counters() -> None:
    """Its memory is not made, or is none."""
    for data in (b"", b"\xca\xfe\xc0\xc0"):
        with pytest.raises(ValueError, match="counters"):
            PerfData(Memory(data), *BOUNDS).read(("sun.gc.cause",))


@given(st.binary(max_size=200), st.integers(0, 5))
def test_any_bytes(data: bytes, count: int) -> None:
    """Values, or a reason why there are none."""
    claimed = MAGIC + struct.pack("<bbbbiiqII", 0, 2, 0, 1, 0, 0, 0, 32, count) + data
    for memory in (Memory(data), Memory(claimed)):
        try:
            PerfData(memory, *BOUNDS).read(("", "x", "sun.gc.cause"))
        except ValueError:
            continue
