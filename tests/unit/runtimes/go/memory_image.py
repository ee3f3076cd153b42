"""Structures in this process' own memory, to be read as another's."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bpfleakd.runtimes.go.memory import ProcessMemory


class Arena:
    """Bytes at a fixed address, taken from the beginning on."""

    def __init__(self, size_bytes: int = 1 << 16) -> None:
        self._buffer = ctypes.create_string_buffer(size_bytes + 8)
        self._used = -ctypes.addressof(self._buffer) % 8

    def words(self, values: Sequence[int]) -> int:
        """Put words down; returns their address."""
        data = struct.pack(f"<{len(values)}Q", *(value & (1 << 64) - 1 for value in values))
        return self.bytes(data)

    def bytes(self, data: bytes) -> int:
        """Put bytes down, at a multiple of 8; returns their address."""
        address = ctypes.addressof(self._buffer) + self._used
        ctypes.memmove(address, data, len(data))
        self._used += -(-len(data) // 8) * 8
        return address

    @staticmethod
    def set(address: int, value: int, size_bytes: int = 8) -> None:
        """Change a number."""
        ctypes.memmove(address, value.to_bytes(size_bytes, "little"), size_bytes)


@contextmanager
def own_memory(*, writable: bool = False) -> Iterator[ProcessMemory]:
    """This process, read by way of /proc."""
    memory = ProcessMemory(os.getpid(), writable=writable)
    try:
        yield memory
    finally:
        memory.close()
