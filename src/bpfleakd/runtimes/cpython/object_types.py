"""Finds the types of objects in pools, and the names of types.

A block of a pool begins with an object, or with the collector's header (PyGC_Head, 16 bytes), or from 3.11 on
with 16 bytes more before that (the pointers to __dict__ and weak references). So the pointer to the type is
one of three words. It is recognized by its target, a type object, and by the word before it, a count of
references. A block without such a word is memory that an object owns: the table of a dict, the items of a
list. Such memory may end with what was there before, for example the pointer to a type, behind a pointer that
looks like a count of references, since an interpreter that is not position-independent has `None` at a small
address. So a block that is too small for the type has no object of it.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.printable import printable, shortened
from bpfleakd.process.memory import MemoryReader
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.code_object import ObjectTypes
from bpfleakd.runtimes.cpython.dict_object import find_text_value
from bpfleakd.runtimes.cpython.layout import CPythonLayout
from bpfleakd.runtimes.cpython.pools import Pools
from bpfleakd.runtimes.cpython.texts import TextReader

# PyTypeObject: the same from 3.9 to 3.14.
_OB_TYPE, _TP_NAME, _TP_BASICSIZE, _TP_FLAGS, _TP_DICT = 8, 24, 32, 168, 264
_TP_BASE, _TP_ITEMSIZE, _OB_SIZE = 256, 40, 16
_FLAG_TEXT, _FLAG_INT, _INT_TAG_BITS = 1 << 28, 1 << 24, 3
_POOL_BLOCK_MAX = 512
_FLAG_READY, _FLAG_HEAP_TYPE, _FLAG_TYPE = 1 << 12, 1 << 9, 1 << 31
_CONTAINER_FLAGS = {1 << 25: "list", 1 << 29: "dict"}
_CONTAINER_NAMES = {"set": "set", "collections.deque": "deque"}
_BASES_MAX = 16
_BASICSIZE_MAX = 1 << 20
_NAME_MAX_BYTES = 256
_TYPE_WORDS = (1, 3, 5)
_COUNT_MASK, _UNUSED_MASK = np.uint64(0xFFFFFFFF), np.uint64(0xFFFF00000000)
# More than large programs have. So many take 5 s of a processor, and twice as many more than twice that.
_TYPES_MAX = 50_000

NO_OBJECT = "(memory of containers)"


class Objects(Struct, frozen=True):
    """The live blocks of pools as objects.

    `types` has the address of each one's type, 0 for no object, and `at` the word of the block with that
    pointer.
    """

    pools: Pools
    types: NDArray[np.uint64]
    at: NDArray[np.int8]

    def counts(self) -> list[tuple[int, int]]:
        """The number of objects of each type, by its address; 0: no type."""
        found, counts = np.unique(self.types, return_counts=True)
        return list(zip(found.tolist(), counts.tolist(), strict=True))

    def field(self, chosen: NDArray[np.bool_], offset: int) -> NDArray[np.uint64]:
        """The word at an offset of these objects, whose blocks are large enough."""
        words = np.zeros(int(np.count_nonzero(chosen)), np.uint64)
        for word in _TYPE_WORDS:
            here = self.at[chosen] == word
            index = word - 1 + offset // 8
            if here.any() and index < self.pools.block_bytes // 8:
                words[here] = self.pools.column(index)[chosen][here]
        return words

    def addresses(self, chosen: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """The addresses of these objects."""
        return self.pools.addresses()[chosen] + (self.at[chosen] - 1).astype(np.uint64) * np.uint64(8)


class TypeNames:
    """Names of types of one process, cached by the type's address. `pid` is for reading many at once.

    Whatever looks up a type raises TargetRefused if there are too many.
    """

    def __init__(self, pid: int, memory: RemoteMemory, layout: CPythonLayout, types: ObjectTypes) -> None:
        self._reader = MemoryReader(pid)
        self._memory = memory
        self._layout = layout
        self._types = types
        self._type_type = types.type
        self._texts = TextReader(memory, layout, types.text)
        self._names: dict[int, str | None] = {}
        self._kinds: dict[int, str | None] = {}
        self._metatypes: dict[int, bool] = {}
        self._object_bytes: dict[int, tuple[int, int]] = {}
        self._least: dict[int, int] = {}

    def objects_in(self, pools: Pools) -> Objects:
        """The live blocks of these pools as objects."""
        total = int(np.count_nonzero(pools.is_live))
        objects = Objects(pools, np.zeros(total, np.uint64), np.zeros(total, np.int8))
        for word in _TYPE_WORDS:
            if word >= pools.block_bytes // 8:
                break
            is_new = (objects.types == 0) & self.are_counts(pools.column(word - 1))
            candidates = np.where(is_new, pools.column(word), np.uint64(0))
            types = self._types_among(np.unique(candidates[is_new]))
            room_bytes = pools.block_bytes - 8 * (word - 1)
            fit = [one for one in types.tolist() if self._least_bytes(one) <= room_bytes]
            found = np.isin(candidates, np.array(fit, np.uint64))
            objects.types[found] = candidates[found]
            objects.at[found] = word
        return objects

    def _types_among(self, addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The addresses of types among these, which may include as many others as there are objects."""
        unknown = addresses[~np.isin(addresses, np.fromiter(self._names, np.uint64, len(self._names)))]
        unknown = unknown[(unknown != 0) & (unknown % 8 == 0)]
        for meta in np.unique(metas := self._reader.words(unknown + np.uint64(_OB_TYPE))).tolist():
            if self._is_metatype(meta):
                for address in unknown[metas == meta].tolist():
                    self.name_of(address)
        known = np.array([address for address, name in self._names.items() if name is not None], np.uint64)
        return addresses[np.isin(addresses, known)]

    def name_of(self, address: int) -> str | None:
        """The name of the type at an address, with its module; None if it is not a type."""
        if address not in self._names:
            if len(self._names) >= _TYPES_MAX:
                words = f"its memory seems to have more than {_TYPES_MAX:,} types of Python objects"
                raise errors.TargetRefused(words)
            try:
                self._names[address] = self._read_name(address)
            except (OSError, ValueError):
                self._names[address] = None
        return self._names[address]

    def are_counts(self, words: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which of these words may be counts of references."""
        # 3.14 has flags in the highest 16 bits. A pointer, such as that of a free list, has others.
        unused = _UNUSED_MASK if self._layout.version >= (3, 14) else ~_COUNT_MASK
        counted: NDArray[np.bool_] = ((words & _COUNT_MASK) != 0) & ((words & unused) == 0)
        return counted

    def _read_name(self, address: int) -> str | None:
        if address % 8 or not self._is_metatype(self._memory.word(address + _OB_TYPE)):
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

    def sized_types(self) -> set[int]:
        """The addresses of known types whose objects may be larger than a pool's block."""
        # Pools may have no objects of these types.
        for address in (*astuple(self._types), *(meta for meta, is_one in self._metatypes.items() if is_one)):
            self.name_of(address)
        known = (address for address, name in self._names.items() if name is not None)
        return {address for address in known if self._may_be_large(address)}

    def _may_be_large(self, address: int) -> bool:
        try:
            basic_bytes, item_bytes = self._sizes(address)
        except OSError:
            return False
        return item_bytes > 0 or basic_bytes > _POOL_BLOCK_MAX or self.name_of(address) == "str"

    def _sizes(self, address: int) -> tuple[int, int]:
        """tp_basicsize and tp_itemsize of a type."""
        if address not in self._object_bytes:
            basic_bytes = self._memory.word(address + _TP_BASICSIZE)
            self._object_bytes[address] = basic_bytes, self._memory.word(address + _TP_ITEMSIZE)
        return self._object_bytes[address]

    def _least_bytes(self, address: int) -> int:
        """The bytes of the smallest object of a type."""
        if address not in self._least:
            try:
                # A compact str is smaller than the structure of its type.
                is_text = self._memory.word(address + _TP_FLAGS) & _FLAG_TEXT
                self._least[address] = self._layout.ascii_bytes if is_text else self._sizes(address)[0]
            except OSError:
                self._least[address] = 0
        return self._least[address]

    def basic_bytes(self, type_address: int) -> int:
        """The bytes of an object of a type, without a variable part. Raises OSError."""
        return self._sizes(type_address)[0]

    def size_of(self, address: int, type_address: int) -> int | None:
        """The bytes of an object; None for a str that is not compact. Raises OSError or ValueError."""
        basic_bytes, item_bytes = self._sizes(type_address)
        if not item_bytes:
            if self._memory.word(type_address + _TP_FLAGS) & _FLAG_TEXT:
                return self._texts.size_of(address)
            return basic_bytes
        count = self._memory.word(address + _OB_SIZE)
        if self._memory.word(type_address + _TP_FLAGS) & _FLAG_INT and self._layout.version >= (3, 12):
            count >>= _INT_TAG_BITS
        # Before 3.12 the length of a negative int is negative.
        count = min(count, (1 << 64) - count)
        return basic_bytes + count * item_bytes

    def kind_of(self, address: int) -> str | None:
        """The container type that a type is or derives from: list, dict, set or deque; None: another type."""
        if address not in self._kinds:
            try:
                self._kinds[address] = self._read_kind(address)
            except OSError:
                self._kinds[address] = None
        return self._kinds[address]

    def _read_kind(self, address: int) -> str | None:
        flags = self._memory.word(address + _TP_FLAGS)
        for flag, kind in _CONTAINER_FLAGS.items():
            if flags & flag:
                return kind
        for _ in range(_BASES_MAX):
            if not address:
                return None
            if named := _CONTAINER_NAMES.get(self.name_of(address) or ""):
                return named
            address = self._memory.word(address + _TP_BASE)
        return None

    def _is_metatype(self, address: int) -> bool:
        """Whether it is `type` or derived from it: then an object of it is a type."""
        if address not in self._metatypes:
            if len(self._metatypes) >= _TYPES_MAX:
                self._metatypes.clear()
            self._metatypes[address] = address == self._type_type or self._is_derived_from_type(address)
        return self._metatypes[address]

    def _is_derived_from_type(self, address: int) -> bool:
        try:
            flags = self._memory.word(address + _TP_FLAGS) if address % 8 == 0 else 0
            return bool(flags & _FLAG_TYPE and self._memory.word(address + _OB_TYPE) == self._type_type)
        except OSError:
            return False

    def _module_of(self, address: int) -> str | None:
        names = self._memory.word(address + _TP_DICT)
        value = find_text_value(self._memory, self._texts, self._layout, names, "__module__")
        return printable(value) if value else None
