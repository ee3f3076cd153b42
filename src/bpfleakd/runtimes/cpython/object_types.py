"""Which type an object in a pool has, and what a type is called.

A block of a pool begins with an object, or with what the collector keeps before one (PyGC_Head, 16 bytes), or
from 3.11 on with 16 bytes more before that (the pointers to __dict__ and weak references). So the type is one
of three words. It is told by what it points to, a type object, and by the word before it, a count of
references. A block that has none is memory that an object owns: the table of a dict, the items of a list.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from bpfleakd.printable import printable, shortened
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.code_object import ObjectTypes
from bpfleakd.runtimes.cpython.dict_object import find_text_value
from bpfleakd.runtimes.cpython.layout import Layout
from bpfleakd.runtimes.cpython.pools import Pools
from bpfleakd.runtimes.cpython.texts import TextReader

__all__ = ["NO_OBJECT", "TypeNames"]

# PyTypeObject: the same from 3.9 to 3.14.
_OB_TYPE, _TP_NAME, _TP_BASICSIZE, _TP_FLAGS, _TP_DICT = 8, 24, 32, 168, 264
_FLAG_READY, _FLAG_HEAP_TYPE = 1 << 12, 1 << 9
_HEAD = struct.Struct("<QQ")
_BASICSIZE_MAX = 1 << 20
_NAME_MAX_BYTES = 256
_TYPE_WORDS = (1, 3, 5)
_COUNT_MASK = np.uint64(0xFFFFFFFF)

NO_OBJECT = "(memory of containers)"


class TypeNames:
    """Names of types of one process, remembered by the type's address."""

    def __init__(self, memory: RemoteMemory, layout: Layout, types: ObjectTypes) -> None:
        self._memory = memory
        self._layout = layout
        self._type_type = types.type
        self._texts = TextReader(memory, layout, types.text)
        self._names: dict[int, str | None] = {}

    def types_in(self, pools: Pools) -> dict[str, int]:
        """How many live blocks of these pools are of each type, by its name."""
        counts: dict[str, int] = {}
        total = int(np.count_nonzero(pools.is_live))
        rest = np.ones(total, np.bool_)
        for word in _TYPE_WORDS:
            if word >= pools.block_bytes // 8:
                break
            types = np.where(rest & self._is_count(pools.column(word - 1)), pools.column(word), 0)
            for address, count in zip(*_counted(types), strict=True):
                name = self.name_of(address)
                if name is not None:
                    counts[name] = counts.get(name, 0) + count
                    rest &= types != np.uint64(address)
        if left := int(np.count_nonzero(rest)):
            counts[NO_OBJECT] = left
        return counts

    def name_of(self, address: int) -> str | None:
        """The name of the type at an address, with its module; None if there is no type."""
        if address not in self._names:
            try:
                self._names[address] = self._read_name(address)
            except (OSError, ValueError):
                self._names[address] = None
        return self._names[address]

    def _is_count(self, words: NDArray[np.uint64]) -> NDArray[np.bool_]:
        counted: NDArray[np.bool_] = (words & _COUNT_MASK) != 0
        # 3.14 has flags in the upper half.
        return counted if self._layout.version >= (3, 14) else counted & (words >> np.uint64(32) == 0)

    def _read_name(self, address: int) -> str | None:
        if address % 8 or not self._is_type(address):
            return None
        flags, basic_bytes = (
            self._memory.word(address + _TP_FLAGS),
            self._memory.word(address + _TP_BASICSIZE),
        )
        if not flags & _FLAG_READY or basic_bytes > _BASICSIZE_MAX:
            return None
        raw = self._memory.text(self._memory.word(address + _TP_NAME), _NAME_MAX_BYTES)
        name = printable(raw.decode(errors="surrogateescape"))
        if not name:
            return None
        if flags & _FLAG_HEAP_TYPE and "." not in name:
            module = self._module_of(address)
            name = f"{module}.{name}" if module and module != "builtins" else name
        return shortened(name, _NAME_MAX_BYTES)

    def _is_type(self, address: int) -> bool:
        """Whether its type is `type`, or a metaclass, whose own type is."""
        meta = self._memory.word(address + _OB_TYPE)
        return meta == self._type_type or (
            meta % 8 == 0 and self._memory.word(meta + _OB_TYPE) == self._type_type
        )

    def _module_of(self, address: int) -> str | None:
        names = self._memory.word(address + _TP_DICT)
        value = find_text_value(self._memory, self._texts, self._layout, names, "__module__")
        return printable(value) if value else None


def _counted(types: NDArray[np.uint64]) -> tuple[list[int], list[int]]:
    found, counts = np.unique(types[types != 0], return_counts=True)
    return found.tolist(), counts.tolist()
