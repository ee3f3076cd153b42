"""Reads the classes of objects in blocks from their vtables, also in stripped programs.

In a program without type information (-fno-rtti), the names come from the symbols of vtables, unless it is
stripped.

A polymorphic object begins with a pointer to its vtable. The word before that is the type information, and
the one before this the distance to the object's beginning, 0 for the vtable that is meant here. The type
information points to the name of the class, mangled. Source: Itanium C++ ABI, sections 2.5.2 ("Virtual Table
Components") and 2.9.5 ("RTTI Layout").

Rules:
- Anything in a block may look like a pointer. So a vtable and everything it refers to must be in memory that
  a module has mapped read-only, and the type information must belong to one of the C++ runtime's three
  classes for classes, by name.
- The pointer need not be the block's first word: arrays have a count before it, nodes of containers their
  links. A pointer further inside a block may be a remnant of an earlier object, so the caller gets its
  offset.
- Blocks change while they are read. A block that cannot be read has no class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.memory import MemoryPart, MemoryReader
from bpfleakd.process.remote_memory import RemoteMemory

_WORD = 8
# The part of a block to search: enough for the links and key of a map's node, and for the count of an array.
_WORDS = 8
# A limit, because there may be many pointers to constants other than vtables.
_CANDIDATES_MAX = 4_096
_KNOWN_MAX = 16_384
_NAME_BYTES_MAX = 1_024
# Possible beginnings of an array's objects: after a count and its alignment (section 2.7).
_ARRAY_STARTS = (8, 16, 32)
_CLASS_INFO = frozenset(
    f"N10__cxxabiv1{name}E".encode()
    for name in ("17__class_type_info", "20__si_class_type_info", "21__vmi_class_type_info")
)


VtableNames = Callable[[Mapping, Sequence[int]], dict[int, str]]
"""The mangled names of classes, by the offset of their vtables in a mapped file, if these have symbols."""


class FoundClass(NamedTuple):
    """The mangled name of a class (of the type information, without a prefix) and the object's offset.

    `is_array`: it is the first of an array, after the number of objects.
    """

    name: str
    offset_bytes: int
    is_array: bool


class ClassReader:
    """Reads classes of objects; remembers them by vtable, as long as the modules stay mapped.

    `names` returns the classes of vtables without type information.
    """

    def __init__(self, names: VtableNames | None = None) -> None:
        self._names = names
        self._mappings: list[Mapping] = []
        self._modules = np.empty((0, 2), np.uint64)
        self._known: dict[int, str | None] = {}

    def use(self, mappings: Sequence[Mapping]) -> None:
        """Use the current mappings of the process from now on."""
        modules = _constant_memory(mappings)
        if not np.array_equal(modules, self._modules):
            self._modules = modules
            self._mappings = list(mappings)
            self._known.clear()

    def read(
        self, pid: int, memory: RemoteMemory, addresses: NDArray[np.uint64], sizes: NDArray[np.uint64]
    ) -> list[FoundClass | None]:
        """The class of the object in each block (address and bytes); None if there is none.

        Raises NoSuchProcess or AccessDenied.
        """
        reader = MemoryReader(pid)
        words = _first_words(reader, addresses, sizes)
        is_candidate = self._is_constant(words) & (words % np.uint64(_WORD) == 0)
        candidates = np.unique(words[is_candidate])
        unknown = [one for one in candidates.tolist() if one not in self._known][:_CANDIDATES_MAX]
        if len(self._known) + len(unknown) > _KNOWN_MAX:
            self._known.clear()
            unknown = candidates.tolist()[:_CANDIDATES_MAX]
        self._learn(reader, memory, np.array(unknown, np.uint64))
        vtables = [one for one in candidates.tolist() if self._known.get(one) is not None]
        is_vtable = is_candidate & np.isin(words, np.array(vtables, np.uint64))
        first = np.argmax(is_vtable, axis=1)
        return [
            self._found(row, place, size) if is_there else None
            for row, place, size, is_there in zip(
                words.tolist(), first.tolist(), sizes.tolist(), is_vtable.any(axis=1).tolist(), strict=True
            )
        ]

    def _found(self, words: list[int], place: int, size_bytes: int) -> FoundClass | None:
        name = self._known[words[place]]
        start = place * _WORD
        count = words[place - 1] if start in _ARRAY_STARTS else 0
        is_array = 0 < count <= (size_bytes - start) // _WORD and (size_bytes - start) % (count * _WORD) == 0
        return FoundClass(name, start, is_array) if name is not None else None

    def _is_constant(self, addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each address is in a module's constants."""
        return _are_in(self._modules, addresses)

    def _learn(self, reader: MemoryReader, memory: RemoteMemory, vtables: NDArray[np.uint64]) -> None:
        self._known |= dict.fromkeys(vtables.tolist())
        if not len(vtables):
            return
        before = vtables - np.uint64(_WORD)
        infos = reader.words(before)
        likely = self._is_constant(before) & self._is_constant(infos) & (infos % np.uint64(_WORD) == 0)
        self._learn_by_symbols(reader, vtables[(infos == 0) & self._is_constant(before)])
        vtables, infos = vtables[likely], infos[likely]
        likely = reader.words(vtables - np.uint64(2 * _WORD)) == 0
        for vtable, info in zip(vtables[likely].tolist(), infos[likely].tolist(), strict=True):
            try:
                name = self._class_name(memory, info)
                self._known[vtable] = name.decode("ascii") if name else None
            except (OSError, UnicodeDecodeError):
                continue

    def _learn_by_symbols(self, reader: MemoryReader, vtables: NDArray[np.uint64]) -> None:
        """Name vtables without type information: those with a function, and no distance before it."""
        if self._names is None or not len(vtables):
            return
        code = _ranges(one for one in self._mappings if one.executable and one.path.startswith("/"))
        likely = reader.words(vtables - np.uint64(2 * _WORD)) == 0
        likely &= _are_in(code, reader.words(vtables))
        by_mapping: dict[Mapping, list[int]] = defaultdict(list)
        for vtable in vtables[likely].tolist():
            mapping = next((one for one in self._mappings if one.start <= vtable < one.end), None)
            if mapping is not None:
                by_mapping[mapping].append(vtable)
        for mapping, addresses in by_mapping.items():
            bias = mapping.start - mapping.offset
            found = self._names(mapping, [address - bias for address in addresses])
            self._known |= {offset + bias: name for offset, name in found.items()}

    def _class_name(self, memory: RemoteMemory, info: int) -> bytes | None:
        """The name in the type information at an address, if it is that of a class."""
        kind = memory.word(info)
        if not self._are_constant(kind, kind - _WORD):
            return None
        kind_info = memory.word(kind - _WORD)
        if self._name_in(memory, kind_info) not in _CLASS_INFO:
            return None
        return self._name_in(memory, info)

    def _name_in(self, memory: RemoteMemory, info: int) -> bytes | None:
        if not self._are_constant(info, info + _WORD):
            return None
        address = memory.word(info + _WORD)
        if not self._are_constant(address):
            return None
        # A star means that names are to be compared by address: the class is local to one file.
        return memory.text(address, _NAME_BYTES_MAX).removeprefix(b"*")

    def _are_constant(self, *addresses: int) -> bool:
        if not all(0 <= address < 1 << 64 for address in addresses):
            return False
        return bool(self._is_constant(np.array(addresses, np.uint64)).all())


def _constant_memory(mappings: Sequence[Mapping]) -> NDArray[np.uint64]:
    """Read-only mappings of modules (files with code), by address: n x 2, start and end."""
    modules = {(one.device, one.inode) for one in mappings if one.executable and one.path.startswith("/")}
    return _ranges(
        one
        for one in mappings
        if one.readable
        and not one.writable
        and not one.shared
        and one.path.startswith("/")
        and (one.device, one.inode) in modules
    )


def _ranges(mappings: Iterable[Mapping]) -> NDArray[np.uint64]:
    return np.array([(one.start, one.end) for one in mappings], np.uint64).reshape(-1, 2)


def _are_in(ranges: NDArray[np.uint64], addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each address is in one of the ranges, which are in order."""
    if not len(ranges):
        return np.zeros(addresses.shape, bool)
    place = np.searchsorted(ranges[:, 0], addresses, side="right").astype(np.int64) - 1
    inside: NDArray[np.bool_] = (place >= 0) & (addresses < ranges[np.maximum(place, 0), 1])
    return inside


def _first_words(
    reader: MemoryReader, addresses: NDArray[np.uint64], sizes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The first words of each block, one row each; 0 beyond its end, or if they cannot be read."""
    words = np.zeros((len(addresses), _WORDS), np.uint64)
    lengths = np.minimum(sizes // np.uint64(_WORD), np.uint64(_WORDS)) * np.uint64(_WORD)
    usable = (lengths > 0) & (addresses % np.uint64(_WORD) == 0)
    order = np.flatnonzero(usable)[np.argsort(addresses[usable])]
    starts = addresses[order]
    ends = starts + lengths[order]
    parts = [MemoryPart(*bounds) for bounds in zip(starts.tolist(), ends.tolist(), strict=True)]
    for bases, counts, read in reader.read(parts):
        block = np.searchsorted(starts, bases, side="right") - 1
        first = (bases - starts[block]).astype(np.int64) // _WORD
        before = np.cumsum(counts) - counts
        place = np.repeat(first - before, counts) + np.arange(len(read))
        # Blocks that overlap, freed and allocated again meanwhile, do not extend into another row.
        is_inside = place < _WORDS
        words[np.repeat(order[block], counts)[is_inside], place[is_inside]] = read[is_inside]
    return words
