"""Python's objects of more than 512 bytes, which are not in pools but in blocks of malloc.

No list contains them, so every possible place is checked: an address that is a multiple of 16, with a count
of references and a known type. It is an object if it needs a separate block: if it is larger than a pool's
largest block, according to its type and its length. Other memory may look similar, a table with pointers to
types for example; its length is then an arbitrary number. So an apparent object that contains several others
does not count.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.memory import MemoryPart, MemoryReader, written_parts
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.layout import CPythonLayout
from bpfleakd.runtimes.cpython.object_types import TypeNames
from bpfleakd.runtimes.cpython.pools import find_pools, is_anonymous, pool_bytes

_POOL_BLOCK_MAX = 512
_READ_MAX_BYTES = 2 << 30
_SIZE_MAX_BYTES = 1 << 40
# The content of an object, such as bytes, may look like another object by chance.
_COVERED_MIN = 4


def large_objects(
    pid: int, memory: RemoteMemory, layout: CPythonLayout, names: TypeNames
) -> Iterator[tuple[str, int]]:
    """Type and bytes of each. Raises NoSuchProcess or AccessDenied."""
    found = [*_seeming(pid, memory, layout, names)]
    places, sizes = (np.array([one[part] for one in found], np.uint64) for part in (0, 2))
    for (_address, name, size_bytes), is_one in zip(found, ~cover_others(places, sizes), strict=True):
        if is_one:
            yield name, size_bytes


def cover_others(places: NDArray[np.uint64], sizes_bytes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of these apparent objects, in any order, contain so many others that they are none."""
    starts = np.sort(places)
    inside = np.searchsorted(starts, places + sizes_bytes) - np.searchsorted(starts, places, side="right")
    covers: NDArray[np.bool_] = inside >= _COVERED_MIN
    return covers


def _seeming(
    pid: int, memory: RemoteMemory, layout: CPythonLayout, names: TypeNames
) -> Iterator[tuple[int, str, int]]:
    """Yield address, type and bytes of apparent objects."""
    types = names.sized_types()
    known = np.array(sorted(types), np.uint64)
    for addresses, found in _candidates(pid, layout, names, known):
        for address, type_address in zip(addresses.tolist(), found.tolist(), strict=True):
            try:
                size_bytes = names.size_of(address, type_address)
            except (OSError, ValueError):
                continue
            if size_bytes is not None and _POOL_BLOCK_MAX < size_bytes < _SIZE_MAX_BYTES:
                name = names.name_of(type_address)
                if name is not None and _is_there(memory, address, size_bytes):
                    yield address, name, size_bytes


def _candidates(
    pid: int, layout: CPythonLayout, names: TypeNames, known: NDArray[np.uint64]
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Addresses with the addresses of their types."""
    reader = MemoryReader(pid)
    for part in _parts(pid, pool_bytes(layout.version)):
        for bases, lengths, words in reader.read([part]):
            ends = np.cumsum(lengths)
            for base, end, length in zip(bases.tolist(), ends.tolist(), lengths.tolist(), strict=True):
                piece = words[end - length : end]
                skip = 0 if base % 16 == 0 else 1
                counts, types = piece[skip::2][: (length - skip) // 2], piece[skip + 1 :: 2]
                right = np.flatnonzero(np.isin(types, known) & names.are_counts(counts[: len(types)]))
                yield (base + 8 * skip + 16 * right).astype(np.uint64), types[right]


def _parts(pid: int, size_bytes: int) -> Iterator[MemoryPart]:
    """Yield memory that belongs to malloc and not to pymalloc, up to a limit."""
    mappings = read_mappings(pid)
    pools = np.sort(np.concatenate([np.zeros(0, np.uint64), *find_pools(pid, mappings, size_bytes).values()]))
    left_bytes = _READ_MAX_BYTES
    for mapping in mappings:
        if not is_anonymous(mapping) and mapping.path != "[heap]":
            continue
        for part in written_parts(pid, MemoryPart(mapping.start, mapping.end), shared=False):
            low, high = np.searchsorted(pools, np.array([part.start, part.end], np.uint64))
            start = part.start
            for pool in [*pools[low:high].tolist(), part.end]:
                if start < pool and left_bytes > 0:
                    yield MemoryPart(start, pool)
                    left_bytes -= pool - start
                start = max(start, pool + size_bytes)


def _is_there(memory: RemoteMemory, address: int, size_bytes: int) -> bool:
    """Whether its last word is in memory of the process."""
    try:
        memory.read(address + size_bytes - 8, 8)
    except OSError:
        return False
    return True
