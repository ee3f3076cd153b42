"""HotSpot's description of its own structures, made for debuggers: `gHotSpotVMStructs` and similar tables.

libjvm.so exports the addresses of the tables and the offsets of their columns
(src/hotspot/share/runtime/vmStructs.hpp). The tables are read from the process, so they are bounded and
checked.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from bpfleakd.process.remote_memory import RemoteMemory

_STRUCTS, _TYPES, _CONSTANTS = "gHotSpotVMStructs", "gHotSpotVMTypes", "gHotSpotVMIntConstants"
_STRUCT_COLUMNS = ("TypeName", "FieldName", "IsStatic", "Offset", "Address")
_TYPE_COLUMNS = ("TypeName", "Size")
_CONSTANT_COLUMNS = ("Name", "Value")
_STRUCT, _TYPE, _CONSTANT = (
    name.removesuffix("s") + "Entry"
    for name in ("gHotSpotVMStructs", "gHotSpotVMTypes", "gHotSpotVMIntConstants")
)
EXPORTED = (
    *(_STRUCTS, _TYPES, _CONSTANTS),
    *(f"{_STRUCT}{column}Offset" for column in _STRUCT_COLUMNS),
    *(f"{_TYPE}{column}Offset" for column in _TYPE_COLUMNS),
    *(f"{_CONSTANT}{column}Offset" for column in _CONSTANT_COLUMNS),
    *(f"{table}ArrayStride" for table in (_STRUCT, _TYPE, _CONSTANT)),
)
"""The symbols of libjvm.so that are needed."""

# 17 has 788, 1,020 and 600 rows.
_ROWS_MAX = 8_192
# There are 1,500, close together: each distant one costs a read.
_NAMES_MAX = 4_096
_STRIDE_MAX_BYTES = 256
_NAME_MAX_BYTES = 160
# The largest of those that bpfleakd uses is 464.
_OFFSET_MAX = 4_096


class VmStructs(Struct, frozen=True):
    """Offsets of fields and addresses of static ones, by type and field; sizes of types; constants."""

    offsets: dict[tuple[str, str], int]
    statics: dict[tuple[str, str], int]
    sizes: dict[str, int]
    constants: dict[str, int]


def read_vm_structs(
    memory: RemoteMemory, addresses: Mapping[str, int], types: Collection[str], constants: Collection[str]
) -> VmStructs:
    """Read the description of these types and constants. `addresses` are those of EXPORTED in the process.

    Raises OSError or ValueError.
    """
    names = _Names(memory)
    offsets: dict[tuple[str, str], int] = {}
    statics: dict[tuple[str, str], int] = {}
    for type_, field, is_static, offset, address in _rows(
        memory, addresses, _STRUCTS, _STRUCT, _STRUCT_COLUMNS
    ):
        if names.read(type_) not in types:
            continue
        key = names.read(type_), names.read(field)
        if is_static & 0xFFFF_FFFF:
            statics[key] = address
        elif offset < _OFFSET_MAX:
            offsets[key] = offset
    sizes = {
        names.read(type_): size
        for type_, size in _rows(memory, addresses, _TYPES, _TYPE, _TYPE_COLUMNS)
        if size < _OFFSET_MAX and names.read(type_) in types
    }
    values = {
        names.read(name): value & 0xFFFF_FFFF
        for name, value in _rows(memory, addresses, _CONSTANTS, _CONSTANT, _CONSTANT_COLUMNS)
        if names.read(name) in constants
    }
    return VmStructs(offsets, statics, sizes, values)


class _Names:
    """Texts by address. Each is read once, because the rows of a type share its name.

    `read` raises OSError, or ValueError if there are too many.
    """

    def __init__(self, memory: RemoteMemory) -> None:
        self._memory = memory
        self._known: dict[int, str] = {}

    def read(self, address: int) -> str:
        if address not in self._known:
            if len(self._known) >= _NAMES_MAX:
                raise ValueError("its tables have too many names")
            self._known[address] = self._memory.text(address, _NAME_MAX_BYTES).decode("ascii", "replace")
        return self._known[address]


def _rows(
    memory: RemoteMemory, addresses: Mapping[str, int], table: str, entry: str, columns: tuple[str, ...]
) -> Iterator[tuple[int, ...]]:
    """The rows of a table as words, up to the one without a name."""
    at = memory.word(addresses[table])
    stride = memory.word(addresses[f"{entry}ArrayStride"])
    places = [memory.word(addresses[f"{entry}{column}Offset"]) for column in columns]
    # The last row need not have more bytes than its columns: a constant of 32 bits ends before its word.
    if not 8 <= stride <= _STRIDE_MAX_BYTES or any(place + 4 > stride for place in places):
        raise ValueError("the tables of its structures are not as expected")
    for _ in range(_ROWS_MAX):
        row = memory.read(at, stride) + bytes(8)
        words = tuple(struct.unpack_from("<Q", row, place)[0] for place in places)
        if not words[0]:
            return
        yield words
        at += stride
    raise ValueError("the tables of its structures do not end")
