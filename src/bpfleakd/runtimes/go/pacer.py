"""The collector's pacing: the current GOGC and GOMEMLIMIT, however they were set.

`gcController` (runtime/mgcpacer.go) begins with gcPercent, 32 bits and as many of padding, since 1.19
memoryLimit, and heapMinimum, which the runtime computes of gcPercent. So a candidate can be verified.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from bpfleakd.runtimes.go.memory import ProcessMemory

_WORD_BYTES = 8
_HEAP_MINIMUM_BYTES = 4 << 20
_NO_LIMIT = (1 << 63) - 1


class Pacing(Struct, frozen=True):
    """`percent`: how much the heap may grow over the live heap before a collection; None: no limit.

    `limit_bytes`: the memory at which a collection runs in any case; None: there is no limit.
    """

    percent: int | None
    limit_bytes: int | None


class Pacer:
    """The pacing of one process."""

    def __init__(self, memory: ProcessMemory, address: int, *, has_limit: bool) -> None:
        """`address` is that of gcController."""
        self._memory = memory
        self._address = address
        self._has_limit = has_limit

    def read(self) -> Pacing | None:
        """The current pacing; None if it is unreadable or invalid."""
        words = 2 + self._has_limit
        data = self._memory.read(self._address, words * _WORD_BYTES)
        if len(data) < words * _WORD_BYTES:
            return None
        percent = int.from_bytes(data[:4], "little", signed=True)
        minimum_bytes = int.from_bytes(data[-_WORD_BYTES:], "little")
        if percent < -1 or minimum_bytes != _minimum_bytes(percent):
            return None
        limit_bytes = int.from_bytes(data[_WORD_BYTES : 2 * _WORD_BYTES], "little", signed=True)
        if not self._has_limit or limit_bytes == _NO_LIMIT:
            return Pacing(percent if percent >= 0 else None, None)
        return Pacing(percent if percent >= 0 else None, limit_bytes) if limit_bytes >= 0 else None


def find_pacer(memory: ProcessMemory, addresses: Iterable[int], *, has_limit: bool) -> Pacer | None:
    """The pacer at one of these addresses; None if there is none."""
    pacers = (Pacer(memory, address, has_limit=has_limit) for address in addresses)
    return next((pacer for pacer in pacers if pacer.read() is not None), None)


def _minimum_bytes(percent: int) -> int:
    """heapMinimum, as setGCPercent computes it: without signs, in 64 bits."""
    return (_HEAP_MINIMUM_BYTES * percent) % (1 << 64) // 100
