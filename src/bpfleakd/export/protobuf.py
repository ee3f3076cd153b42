"""Writing protocol buffers: the two wire types that profiles need.

Source: https://protobuf.dev/programming-guides/encoding/. The library would take more of the daemon's memory
than all reports together, for five nearly flat messages.
"""

from __future__ import annotations

from collections.abc import Iterable

_VARINT, _BYTES = 0, 2


class MessageWriter:
    """One message, field by field. Fields with their default value are left out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def number(self, field: int, value: int) -> None:
        """An int64, uint64 or bool."""
        if value:
            self._data += _varint(field << 3 | _VARINT) + _varint(value)

    def numbers(self, field: int, values: Iterable[int]) -> None:
        """A repeated int64 or uint64, packed."""
        packed = b"".join(map(_varint, values))
        if packed:
            self._field(field, packed)

    def text(self, field: int, value: str) -> None:
        """A string, or an element of a repeated one, even if it is empty."""
        self._field(field, value.encode(errors="backslashreplace"))

    def message(self, field: int, value: MessageWriter) -> None:
        """A message, or an element of repeated ones."""
        self._field(field, bytes(value))

    def __bytes__(self) -> bytes:
        return bytes(self._data)

    def _field(self, field: int, content: bytes) -> None:
        self._data += _varint(field << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; a negative number is the two's complement of 64 bits."""
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
