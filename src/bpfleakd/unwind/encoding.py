"""DWARF's encodings: LEB128 numbers and the encoded pointers of .eh_frame.

Rules:
- Every function takes a position and returns the value with the position behind it.
- Bytes that cannot be decoded raise `MalformedCfi`; running off the end raises IndexError or struct.error,
  which the owner of the entry turns into `MalformedCfi(TRUNCATED)`.

Pointer encodings are those of the Linux Standard Base 5.0, core, section 10.5.1 "DWARF extensions".
"""

from __future__ import annotations

import struct

from bpfleakd.unwind.malformed import MalformedCfi, SkipReason

PCREL_SDATA4 = 0x1B

# 64 bits in groups of 7.
_LEB128_MAX_BYTES = 10

_FORMAT_MASK, _APPLICATION_MASK = 0x0F, 0x70
_ABSOLUTE, _PCREL = 0x00, 0x10
_INDIRECT, _ALIGNED = 0x80, 0x50
_ULEB128, _SLEB128 = 0x01, 0x09
_ADDRESS_BYTES = 8
_FIXED_SIZE = {
    0x00: struct.Struct("<Q"),
    0x02: struct.Struct("<H"),
    0x03: struct.Struct("<I"),
    0x04: struct.Struct("<Q"),
    0x0A: struct.Struct("<h"),
    0x0B: struct.Struct("<i"),
    0x0C: struct.Struct("<q"),
}
_ADDRESS_MASK = (1 << 64) - 1


def read_uleb128(data: bytes | memoryview, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift, start = byte & 0x7F, 7, position
    while byte & 0x80:
        position += 1
        if position - start >= _LEB128_MAX_BYTES:
            raise MalformedCfi(SkipReason.BAD_INSTRUCTION)
        byte = data[position]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, position + 1


def read_sleb128(data: bytes | memoryview, position: int) -> tuple[int, int]:
    value, end = read_uleb128(data, position)
    sign_bit = 1 << (7 * (end - position) - 1)
    return (value ^ sign_bit) - sign_bit, end


def read_size(data: bytes | memoryview, position: int, encoding: int) -> tuple[int, int]:
    """Read a number of bytes: the format of a pointer, without what it is relative to."""
    form = encoding & _FORMAT_MASK
    if form == _ULEB128:
        return read_uleb128(data, position)
    if form == _SLEB128:
        return read_sleb128(data, position)
    layout = _FIXED_SIZE.get(form)
    if layout is None:
        raise MalformedCfi(SkipReason.BAD_POINTER)
    return layout.unpack_from(data, position)[0], position + layout.size


def read_pointer(
    data: bytes | memoryview, position: int, encoding: int, section_vaddr: int
) -> tuple[int, int]:
    """Read an address, absolute or relative to itself.

    The other bases (text, data, function) and indirection do not occur in x86-64 FDEs: `MalformedCfi`.
    """
    application = encoding & (_APPLICATION_MASK | _INDIRECT)
    value, end = read_size(data, position, encoding)
    if application == _PCREL:
        value += section_vaddr + position
    elif application != _ABSOLUTE:
        raise MalformedCfi(SkipReason.BAD_POINTER)
    return value & _ADDRESS_MASK, end


def skip_pointer(data: bytes | memoryview, position: int, encoding: int, section_vaddr: int) -> int:
    """Return the position behind a pointer whose value does not matter (a personality routine)."""
    if encoding & _APPLICATION_MASK == _ALIGNED:
        return position + -(section_vaddr + position) % _ADDRESS_BYTES + _ADDRESS_BYTES
    return read_size(data, position, encoding)[1]
