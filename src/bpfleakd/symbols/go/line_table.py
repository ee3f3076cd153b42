"""Functions, lines and inlined calls of Go code, from .gopclntab.

The table survives `-s -w` and strip: the runtime needs it itself. Tables of an address range are pairs of
variable-length numbers (a change of the value, a change of the program counter), as in runtime/symtab.go.

Source of formulas: runtime/symtab.go and symtabinl.go, Go 1.18 to 1.27. Files are untrusted: an inconsistent
table gives no names, and raises no error except `BadElf` when it is opened.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator
from itertools import pairwise

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.section import Section
from bpfleakd.errors import BadElf
from bpfleakd.model.code.method import Method
from bpfleakd.printable import printable, shortened

_SECTIONS = (".gopclntab", ".data.rel.ro.gopclntab")
# Where the C linker puts the table, among other data (c-shared, and position-independent programs with cgo).
_AMONG_OTHERS = ".data.rel.ro"
_BEGINNING = re.compile(rb"[\xf0\xf1]\xff\xff\xff\0\0\x01\x08")
_ALIGNMENT_BYTES = 8

# Go 1.18 and 1.20; the latter is in use up to 1.27.
_MAGICS = {0xFFFFFFF0: 40, 0xFFFFFFF1: 44}
_HEADER = struct.Struct("<IBBBBQQQQQQQQ")
_X86_QUANTUM, _POINTER_BYTES = 1, 8

_FUNCTIONS_MAX = 4_000_000
_NAME_LIMIT_BYTES = 4096
_NAME_LIMIT_CHARACTERS = 512
_TABLE_LIMIT_BYTES = 64 << 10
_STEPS_MAX = 20_000
_INLINED_MAX = 64

_INLINE_TREE_INDEX = 2  # PCDATA_InlTreeIndex
_INLINE_TREE = 3  # FUNCDATA_InlTree
_NONE = 0xFFFFFFFF


class Function(Struct, frozen=True):
    """A function: `entry` and `end` are addresses of the file."""

    name: str
    entry: int
    end: int


class _Record(Struct, frozen=True):
    """The runtime's `_func`: the places of a function's tables."""

    entry: int
    end: int
    name_at: int
    files: int
    lines: int
    unit: int
    values: tuple[int, ...]
    data: tuple[int, ...]


class LineTable:
    """The table of one file, in `section`.

    `text` is the beginning of its Go code, `functions_data` is go:func.* (moduledata).
    """

    def __init__(self, image: ElfImage, section: Section, text: int, functions_data: int) -> None:
        """Raises `BadElf` if the table has an unknown form."""
        self._image = image
        self._text = text
        self._functions_data = functions_data
        self._section = section
        header = self._read(0, _HEADER.size)
        if len(header) < _HEADER.size:
            raise BadElf(f"{image.name}: .gopclntab has no header")
        magic, _pad, _pad2, quantum, pointer_bytes, *numbers = _HEADER.unpack(header)
        if magic not in _MAGICS or quantum != _X86_QUANTUM or pointer_bytes != _POINTER_BYTES:
            raise BadElf(f"{image.name}: .gopclntab has an unknown form ({magic:#x})")
        count, _files, _text, self._names, self._units, self._files, self._tables, self._functions = numbers
        self._record_bytes = _MAGICS[magic]
        self._is_old = self._record_bytes == 40
        self._entries, self._records = self._functab(count)

    def _functab(self, count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        size_bytes = 8 * count + 4
        if not 0 < count <= _FUNCTIONS_MAX:
            raise BadElf(f"{self._image.name}: .gopclntab has {count} functions")
        data = self._read(self._functions, size_bytes)
        if len(data) != size_bytes:
            raise BadElf(f"{self._image.name}: .gopclntab ends before its functions")
        words = np.frombuffer(data, "<u4")
        entries, records = words[0::2].copy(), words[1::2].copy()
        if (np.diff(entries.astype(np.int64)) < 0).any():
            raise BadElf(f"{self._image.name}: the functions of .gopclntab are not in order")
        return entries, records

    @property
    def size_bytes(self) -> int:
        """The memory of the table."""
        return self._entries.nbytes + self._records.nbytes

    @property
    def start(self) -> int:
        """The address of the first function."""
        return self._text + int(self._entries[0])

    @property
    def end(self) -> int:
        """The address after the last function."""
        return self._text + int(self._entries[-1])

    def find(self, vaddr: int) -> Function | None:
        """The function that contains an address."""
        record = self._record_at(vaddr)
        return Function(self._name(record.name_at), record.entry, record.end) if record else None

    def named(self, names: Collection[str]) -> dict[str, Function]:
        """Those functions of these names that the table has."""
        wanted = {}
        text = self._read(self._names, self._units - self._names)
        for name in names:
            at = text.find(b"\0" + name.encode() + b"\0")
            if at >= 0:
                wanted[at + 1] = name
        table = np.frombuffer(
            self._read(self._functions, self._section.size_bytes - self._functions), np.uint8
        )
        places = self._records[np.arange(len(self._entries) - 1)].astype(np.int64) + 4
        inside = np.flatnonzero(places + 4 <= len(table))
        name_at = _words_at(table, places[inside])
        found: dict[str, Function] = {}
        for row in inside[np.isin(name_at, np.array(list(wanted), np.uint32))].tolist():
            name = wanted[int.from_bytes(table[places[row] : places[row] + 4].tobytes(), "little")]
            entry, end = (self._text + int(self._entries[index]) for index in (row, row + 1))
            found.setdefault(name, Function(name, entry, end))
        return found

    def has_name_with(self, part: bytes) -> bool:
        """Whether the name of a function contains this."""
        return part in self._read(self._names, self._units - self._names)

    def frames(self, vaddr: int) -> tuple[Method, ...]:
        """Return the functions at an address, the innermost inlined one first; none outside functions."""
        record = self._record_at(vaddr)
        if record is None:
            return ()
        frames = []
        for name_at, parent in self._inlined(record, vaddr):
            frames.append(self._method(record, name_at, vaddr))
            vaddr = parent
        frames.append(self._method(record, record.name_at, vaddr))
        return tuple(frames)

    def logical_frame(self, vaddr: int) -> Method | None:
        """Return the innermost function at an address.

        The stacks that the runtime records have an address for every inlined call.
        """
        record = self._record_at(vaddr)
        if record is None:
            return None
        inner = next(iter(self._inlined(record, vaddr)), None)
        return self._method(record, inner[0] if inner else record.name_at, vaddr)

    def _inlined(self, record: _Record, vaddr: int) -> Iterator[tuple[int, int]]:
        """Yield the name's place and the caller's address of each inlined call, innermost first."""
        if len(record.values) <= _INLINE_TREE_INDEX or len(record.data) <= _INLINE_TREE:
            return
        tree = record.data[_INLINE_TREE]
        if tree == _NONE:
            return
        for _ in range(_INLINED_MAX):
            index = self._value(record.values[_INLINE_TREE_INDEX], record.entry, vaddr)
            if index < 0:
                return
            call = self._inlined_call(self._functions_data + tree, index)
            if call is None or not record.entry <= record.entry + call[1] < record.end:
                return
            vaddr = record.entry + call[1]
            yield call[0], vaddr

    def _inlined_call(self, tree: int, index: int) -> tuple[int, int] | None:
        """Name and caller's offset: `inlinedCall` of the runtime, of 20 bytes before Go 1.20 and 16 since."""
        size_bytes, name_at = (20, 12) if self._is_old else (16, 4)
        try:
            data = self._image.read(tree + index * size_bytes, size_bytes)
        except BadElf:
            return None
        if len(data) < size_bytes:
            return None
        name, offset = struct.unpack_from("<ii", data, name_at)
        return name, offset

    def _method(self, record: _Record, name_at: int, vaddr: int) -> Method:
        file = self._value(record.files, record.entry, vaddr)
        line = self._value(record.lines, record.entry, vaddr)
        name = self._name(name_at)
        path = self._file(record.unit, file) if file >= 0 else None
        return Method(name, file=path, line=line if line > 0 else None)

    def _file(self, unit: int, number: int) -> str | None:
        data = self._read(self._units + 4 * (unit + number), 4)
        at = int.from_bytes(data, "little")
        return self._string(self._files + at) or None if len(data) == 4 and at != _NONE else None

    def _name(self, name_at: int) -> str:
        return self._string(self._names + name_at) if name_at >= 0 else ""

    def _string(self, at: int) -> str:
        for size_bytes in (128, _NAME_LIMIT_BYTES):
            text, end, _ = self._read(at, size_bytes).partition(b"\0")
            if end:
                break
        return shortened(printable(text.decode(errors="surrogateescape")), _NAME_LIMIT_CHARACTERS)

    def _record_at(self, vaddr: int) -> _Record | None:
        offset = vaddr - self._text
        row = int(np.searchsorted(self._entries, max(offset, 0), side="right")) - 1
        if offset < 0 or row < 0 or row >= len(self._entries) - 1:
            return None
        entry, end = (self._text + int(self._entries[index]) for index in (row, row + 1))
        at = self._functions + int(self._records[row])
        data = self._read(at, self._record_bytes)
        if len(data) < self._record_bytes:
            return None
        name_at, files, lines, values, unit = struct.unpack_from("<i", data, 4) + struct.unpack_from(
            "<IIII", data, 20
        )
        count, data_count = min(values, 64), min(data[-1], 64)
        rest = self._read(at + self._record_bytes, 4 * (count + data_count))
        numbers = struct.unpack(f"<{len(rest) // 4}I", rest[: len(rest) // 4 * 4])
        return _Record(entry, end, name_at, files, lines, unit, numbers[:count], numbers[count:])

    def _value(self, table: int, entry: int, vaddr: int) -> int:
        """The value of a function's table at an address; -1 if it has none."""
        if table == 0:
            return -1
        for size_bytes in (512, _TABLE_LIMIT_BYTES):
            value = _walk(self._read(self._tables + table, size_bytes), entry, vaddr)
            if value is not None:
                return value
        return -1

    def _read(self, at: int, size_bytes: int) -> bytes:
        """Bytes of the section, fewer at its end."""
        size_bytes = min(size_bytes, self._section.size_bytes - at)
        if at < 0 or size_bytes <= 0:
            return b""
        try:
            return self._image.source.read(self._section.file_offset + at, size_bytes)
        except BadElf:
            return b""


def pclntab_section(image: ElfImage) -> Section:
    """The section with the table, or its part of a section. Raises `BadElf` if it does not exist."""
    for name in _SECTIONS:
        section = image.section(name)
        if section is not None and section.has_bytes:
            return section
    section = image.section(_AMONG_OTHERS)
    at = _table_in(section) if section is not None else None
    if section is None or at is None:
        raise BadElf(f"{image.name}: has no .gopclntab")
    header = replace(
        section.header,
        vaddr=section.vaddr + at,
        file_offset=section.file_offset + at,
        size_bytes=section.size_bytes - at,
    )
    return Section(section.name, header, section.file_header, section.source)


def _table_in(section: Section) -> int | None:
    """The beginning of a table in a section: a header with consecutive parts. None if there is none."""
    data = section.data
    for found in _BEGINNING.finditer(data):
        at = found.start()
        if at % _ALIGNMENT_BYTES or at + _HEADER.size > len(data):
            continue
        count, _files, _text, *parts = _HEADER.unpack_from(data, at)[5:]
        in_order = all(before < after for before, after in pairwise([0, *parts, len(data) - at]))
        if in_order and 0 < count <= _FUNCTIONS_MAX:
            return at
    return None


def _words_at(data: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.uint32]:
    quads = data[places[:, None] + np.arange(4)]
    return np.ascontiguousarray(quads).view("<u4").reshape(-1)


def _walk(data: bytes, pc: int, vaddr: int) -> int | None:
    """The value at an address in a table that begins at `pc`.

    It is -1 after the table's end, and None if the data end.
    """
    value, position = -1, 0
    try:
        for step in range(_STEPS_MAX):
            change, position = _varint(data, position)
            if change == 0 and step:
                return -1
            value += -(change >> 1) - 1 if change & 1 else change >> 1
            size, position = _varint(data, position)
            pc += size
            if vaddr < pc:
                return value
    except IndexError:
        return None
    return -1


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 35:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, position
