"""Numbers as HotSpot compresses them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.runtimes.jvm.compressed import NumberReader, line_table


def written(value: int, *, excludes_zero: bool) -> bytes:
    """UNSIGNED5 as utilities/unsigned5.hpp states it: L = 192 - X low codes, H = 64 high ones, base 64."""
    lowest = int(excludes_zero)
    low = 192 - lowest
    out = bytearray()
    for _ in range(4):
        if value < low:
            break
        digit = low + (value - low) % 64
        out.append(digit + lowest)
        value = (value - digit) // 64
    out.append(value + lowest)
    return bytes(out)


@pytest.mark.parametrize("excludes_zero", [False, True])
@given(values=st.lists(st.integers(0, (1 << 32) - 1), max_size=20))
def test_numbers(values: list[int], excludes_zero: bool) -> None:
    """Written numbers are read back, one after another."""
    data = b"".join(written(value, excludes_zero=excludes_zero) for value in values)

    numbers = NumberReader(data, excludes_zero=excludes_zero)

    assert [numbers.number() for _ in values] == values
    with pytest.raises(ValueError, match="does not end"):
        numbers.number()


def test_signs() -> None:
    """The lowest bit is the sign."""
    numbers = NumberReader(bytes([0, 1, 2, 3, 4]), excludes_zero=False)
    assert [numbers.signed() for _ in range(5)] == [0, -1, 1, -2, 2]


def test_lines_of_17() -> None:
    """Spin.main of `javac`: small steps in a byte, others behind an escape."""
    table = bytes([0 << 3 | 7, 5 << 3 | 1, 0xFF]) + bytes([2 * 40, 2 * 10 - 1]) + bytes([1 << 3 | 2, 0])
    assert line_table(table, excludes_zero=False) == ((0, 7), (5, 8), (45, -2), (46, 0))


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes(data: bytes, excludes_zero: bool) -> None:
    """Whatever a process has there: rows, or none."""
    rows = line_table(data, excludes_zero=excludes_zero)
    assert rows is None or len(rows) <= len(data)
