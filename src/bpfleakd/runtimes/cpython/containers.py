"""Containers among Python's objects (list, dict, set, deque): the number and the types of their values.

Layouts, the same from 3.9 to 3.14: PyListObject, PyDictObject, PySetObject, and dequeobject of
Modules/_collectionsmodule.c. A class that is derived from one of them begins with it.

A deque has blocks of 64 values, and may grow at both ends. It keeps unneeded blocks for later; before 3.11
all deques shared these, so a block may come from another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.dict_object import last_values
from bpfleakd.runtimes.cpython.layout import CPythonLayout
from bpfleakd.runtimes.cpython.object_types import Objects, TypeNames

# The offsets of the number of values, and of the pointer to their block.
_FIELDS = {"list": (16, 24), "dict": (16, 32), "set": (24, 40), "deque": (16, 32)}
# Below that, the values of a list are in pools too, and the function that makes it grow is invisible.
_SIZE_MIN = 72
_VALUES_READ = 64
_OB_TYPE = 8
_SET_ENTRY_BYTES = 16
# In a deque: leftblock, followed by rightblock, leftindex and rightindex.
_LEFT_BLOCK = 24
_DEQUE_FIELDS = 4
# BLOCKLEN: a block is a link, so many values, and a link.
_BLOCK_VALUES = 64
# A deque that keeps its own sixteen spare blocks has 216 bytes, others have 80.
_OWN_BLOCKS_MIN_BYTES = 200


class Container(Struct, frozen=True):
    """A container with `size` values.

    These are at `table`; for a deque the last ones, and the first at `first_table`. `is_own`: the table was
    created for this container, not reused from another.
    """

    address: int
    kind: str
    size: int
    table: int
    first_table: int = 0
    is_own: bool = True


def containers_in(objects: Objects, names: TypeNames) -> Iterator[Container]:
    """Yield the large containers among these objects."""
    for address, _count in objects.counts():
        kind = names.kind_of(address) if address else None
        if kind is None:
            continue
        chosen = objects.types == np.uint64(address)
        sizes, tables = (objects.field(chosen, offset) for offset in _FIELDS[kind])
        is_deque = kind == "deque"
        firsts = objects.field(chosen, _LEFT_BLOCK) if is_deque else np.zeros_like(tables)
        is_own = not is_deque or names.basic_bytes(address) >= _OWN_BLOCKS_MIN_BYTES
        large = (sizes >= _SIZE_MIN) & (sizes < np.uint64(1 << 40)) & (tables != 0)
        rows = (objects.addresses(chosen)[large], sizes[large], tables[large], firsts[large])
        for place, size, table, first in zip(*(column.tolist() for column in rows), strict=True):
            yield Container(place, kind, size, table, first, is_own)


def value_types(
    memory: RemoteMemory, layout: CPythonLayout, names: TypeNames, container: Container
) -> list[str]:
    """The types of some values, the latest if they have an order; most frequent first."""
    found: Counter[str] = Counter()
    try:
        values = _values(memory, layout, container)
    except (OSError, ValueError):
        return []
    for value in values:
        try:
            name = names.name_of(memory.word(value + _OB_TYPE)) if value else None
        except OSError:
            continue
        if name is not None:
            found[name] += 1
    return [name for name, _count in found.most_common()]


def _values(memory: RemoteMemory, layout: CPythonLayout, container: Container) -> list[int]:
    count = min(container.size, _VALUES_READ)
    match container.kind:
        case "list":
            first = container.table + 8 * (container.size - count)
            return _words(memory, first, count)
        case "dict":
            return last_values(memory, layout, container.table, count)
        case "set":
            return _words(memory, container.table, count * _SET_ENTRY_BYTES // 8)[::2]
        case _:
            return _values_at_the_ends(memory, container.address)


def _values_at_the_ends(memory: RemoteMemory, deque: int) -> list[int]:
    """The values in the first and in the last block of a deque. The rest of a block is older."""
    left, right, first, last = _words(memory, deque + _LEFT_BLOCK, _DEQUE_FIELDS)
    if not (0 <= first < _BLOCK_VALUES and 0 <= last < _BLOCK_VALUES):
        raise ValueError("this is no deque")
    if left == right:
        return _words(memory, left + 8 * (1 + first), last + 1 - first) if first <= last else []
    beginning = _words(memory, left + 8 * (1 + first), _BLOCK_VALUES - first)
    return beginning + _words(memory, right + 8, last + 1)


def _words(memory: RemoteMemory, address: int, count: int) -> list[int]:
    words: list[int] = np.frombuffer(memory.read(address, 8 * count), np.uint64).tolist()
    return words
