"""From an instruction of a code object to its line, for the three formats of CPython.

Sources: Objects/lnotab_notes.txt (3.9 and 3.10) and Objects/locations.md (3.11 and later), of CPython.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# The beginning of an entry.
_HEAD = re.compile(rb"[\x80-\xff]")
_LINE_BYTES_3_9 = 2
_UNIT_BYTES = 2
_NO_LINE = -128
_SHORT_FORMS = 10
_ONE_LINE_FORMS = (10, 11, 12)
_NO_COLUMNS, _LONG, _NONE = 13, 14, 15
# A number of 32 bits, six in each byte.
_NUMBER_MAX_BITS = 36


def line_at(version: tuple[int, int], table: bytes, first_line: int, offset_bytes: int) -> int | None:
    """The line of the instruction at `offset_bytes` of the bytecode; None where it has none.

    `table` is untrusted: malformed data ends the search.
    """
    if version >= (3, 11):
        ranges = _locations(table, first_line)
    elif version >= (3, 10):
        ranges = _line_ranges(table, first_line)
    else:
        return _line_in_lnotab(table, first_line, offset_bytes)
    for end, line in ranges:
        if offset_bytes < end:
            return line
    return None


def _line_in_lnotab(table: bytes, first_line: int, offset_bytes: int) -> int:
    """Pairs of (bytes, lines signed); an instruction has the line of the last pair at or before it."""
    line, at = first_line, 0
    for index in range(0, len(table) - 1, _LINE_BYTES_3_9):
        at += table[index]
        if at > offset_bytes:
            break
        line += _signed(table[index + 1])
    return line


def _line_ranges(table: bytes, first_line: int) -> Iterator[tuple[int, int | None]]:
    """Yield pairs of (bytes covered, lines signed); -128 means that these instructions have no line."""
    line, end = first_line, 0
    for index in range(0, len(table) - 1, _LINE_BYTES_3_9):
        end += table[index]
        lines = _signed(table[index + 1])
        if lines != _NO_LINE:
            line += lines
        yield end, None if lines == _NO_LINE else line


def _locations(table: bytes, first_line: int) -> Iterator[tuple[int, int | None]]:
    """Yield the form of each entry, and the units it covers; its first byte has the high bit set."""
    line, end, position = first_line, 0, 0
    while position < len(table):
        head = table[position]
        form = head >> 3 & 15
        end += ((head & 7) + 1) * _UNIT_BYTES
        if form in (_NO_COLUMNS, _LONG):
            line += _signed_varint(table, position + 1)
        elif form in _ONE_LINE_FORMS:
            line += form - _SHORT_FORMS
        yield end, None if form == _NONE else line
        following = _HEAD.search(table, position + 1)
        position = following.start() if following else len(table)


def _signed(byte: int) -> int:
    return byte - 256 if byte >= 128 else byte


def _signed_varint(table: bytes, position: int) -> int:
    """Six bits per byte, lowest first; 0x40 means that more follow; the lowest bit of all is the sign."""
    value = shift = 0
    while position < len(table) and shift < _NUMBER_MAX_BITS:
        byte = table[position]
        value |= (byte & 63) << shift
        if not byte & 64:
            break
        shift += 6
        position += 1
    return -(value >> 1) if value & 1 else value >> 1
