"""Numbers as HotSpot compresses them: debug information and tables of lines.

UNSIGNED5 (src/hotspot/share/utilities/unsigned5.hpp): digits of 6 bits in bytes, the lowest first. The last
byte of a number is below 192, or it is the fifth. From JDK 20 on no byte is zero: each is one more than its
digit.
"""

from __future__ import annotations

_LAST_BELOW = 192
_DIGITS_MAX = 5
_DIGIT_BITS = 6
_ROWS_MAX = 65_536
_ESCAPE = 0xFF


class NumberReader:
    """Reads one number after the other. Raises ValueError at the end of the data."""

    def __init__(self, data: bytes, *, excludes_zero: bool, at: int = 0) -> None:
        self._data = data
        self._lowest = int(excludes_zero)
        self._at = at

    def byte(self) -> int:
        """The next byte."""
        if not 0 <= self._at < len(self._data):
            raise ValueError("a number that does not end")
        self._at += 1
        return self._data[self._at - 1]

    def number(self) -> int:
        """The next number, of 32 bits."""
        value = 0
        for digit in range(_DIGITS_MAX):
            byte = self.byte()
            value += byte - self._lowest << _DIGIT_BITS * digit
            if byte < _LAST_BELOW:
                break
        return value & 0xFFFF_FFFF

    def signed(self) -> int:
        """The next signed number; the sign is in its lowest bit."""
        value = self.number()
        return (value >> 1) ^ -(value & 1)


def line_table(data: bytes, *, excludes_zero: bool) -> tuple[tuple[int, int], ...] | None:
    """Rows of a compressed line number table (oops/method.hpp).

    A row is the index of the bytecode where a line begins, and the line's number. None if `data` ends before
    the table does.
    """
    numbers = NumberReader(data, excludes_zero=excludes_zero)
    rows: list[tuple[int, int]] = []
    start = line = 0
    try:
        while (byte := numbers.byte()) and len(rows) < _ROWS_MAX:
            if byte == _ESCAPE:
                start += numbers.signed()
                line += numbers.signed()
            else:
                start += byte >> 3
                line += byte & 7
            rows.append((start, line))
    except ValueError:
        return None
    return tuple(rows)
