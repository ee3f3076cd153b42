"""The counters of a JVM for its tools (jstat), read from its memory.

The JVM also maps them as a file, hsperfdata (src/hotspot/share/runtime/perfMemory.hpp), which may be in a
container's /tmp or nowhere. Its memory always has them, except with -XX:-UsePerfData.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from bpfleakd.process.remote_memory import RemoteMemory

_PROLOGUE = struct.Struct("<IbbbbiiqII")
_ENTRY = struct.Struct("<iiibbbbi")
# As bytes in memory: it is written in the order of the host, and read so.
_MAGIC = 0xC0C0FECA
_SIZE_MAX_BYTES = 1 << 20  # -XX:PerfDataMemorySize is 32 KiB
_ENTRIES_MAX = 4_096
_TEXT_MAX_BYTES = 256


class PerfData:
    """The counters of one process by name. Entries do not move, so their places are read once."""

    def __init__(self, memory: RemoteMemory, start: int, end: int) -> None:
        """`start` and `end` are the addresses of PerfMemory::_start and _end."""
        self._memory = memory
        self._bounds = start, end
        self._places: dict[str, tuple[int, int]] = {}

    def read(self, names: Collection[str]) -> dict[str, int | str]:
        """The values of those counters that exist.

        Raises OSError, or ValueError if there is no such memory (yet).
        """
        start, end = (self._memory.word(address) for address in self._bounds)
        if not 0 < end - start <= _SIZE_MAX_BYTES:
            raise ValueError("it keeps no counters (-XX:-UsePerfData)")
        data = self._memory.read(start, end - start)
        if len(data) < _PROLOGUE.size:
            raise ValueError("its counters are not as expected")
        if not self._places.keys() >= set(names):
            self._places = dict(_entries(data))
        return {name: _value(data, *self._places[name]) for name in names if name in self._places}


def _entries(data: bytes) -> list[tuple[str, tuple[int, int]]]:
    """The name of each entry, the place of its value, and the length of a text; 0 for a number."""
    magic, *_versions, at, count = _PROLOGUE.unpack_from(data)
    if magic != _MAGIC or count > _ENTRIES_MAX:
        raise ValueError("its counters are not as expected")
    found = []
    for _ in range(count):
        if at + _ENTRY.size > len(data):
            break
        size_bytes, name_at, length, _type, _flags, _unit, _variability, value_at = _ENTRY.unpack_from(
            data, at
        )
        if size_bytes < _ENTRY.size or min(name_at, length, value_at) < 0 or at + size_bytes > len(data):
            break
        name = data[at + name_at : at + value_at].partition(b"\0")[0].decode("ascii", "replace")
        found.append((name, (at + value_at, length)))
        at += size_bytes
    return found


def _value(data: bytes, place: int, length: int) -> int | str:
    if length:
        text = data[place : place + min(length, _TEXT_MAX_BYTES)]
        return text.partition(b"\0")[0].decode("ascii", "replace")
    return int.from_bytes(data[place : place + 8], "little", signed=True)
