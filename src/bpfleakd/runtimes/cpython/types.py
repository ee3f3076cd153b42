"""Bytes and count of Python's objects by type, read from outside while the program runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from bpfleakd.model.mapping import Mapping
from bpfleakd.runtimes.cpython.object_types import TypeNames
from bpfleakd.runtimes.cpython.pools import find_pools, pool_bytes, read_pools
from bpfleakd.runtimes.runtime import TypeCount

__all__ = ["PythonTypes"]


class PythonTypes:
    """Objects of up to 512 bytes: those are all that pymalloc holds, and nearly all that there are.

    A pool is read at once, so that the process need not stand still: each counts as it was when it was read.
    """

    work = "nothing: its memory is read while it runs"
    includes_garbage = False

    def __init__(
        self, pid: int, version: tuple[int, int], names: TypeNames, mappings: Callable[[], Sequence[Mapping]]
    ) -> None:
        self._pid = pid
        self._pool_bytes = pool_bytes(version)
        self._names = names
        self._mappings = mappings

    def price_s(self) -> float:
        """It never stands still."""
        return 0.0

    def read(self) -> Sequence[TypeCount]:
        """All types, most bytes first. `live_bytes` are those of their blocks, the collector's part included.

        Raises NoSuchProcess or AccessDenied.
        """
        counts: Counter[str] = Counter()
        live_bytes: Counter[str] = Counter()
        found = find_pools(self._pid, self._mappings(), self._pool_bytes)
        for size_class, addresses in found.items():
            for pools in read_pools(self._pid, size_class, addresses, self._pool_bytes):
                for name, count in self._names.types_in(pools).items():
                    counts[name] += count
                    live_bytes[name] += count * pools.block_bytes
        return [TypeCount(name, size, counts[name]) for name, size in live_bytes.most_common()]
