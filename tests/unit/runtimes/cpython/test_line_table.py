"""Lines of instructions, against what Python itself says."""

from __future__ import annotations

import dis
import sys
import textwrap
from types import CodeType

import pytest

from bpfleakd.runtimes.cpython.line_table import line_at

# def f(a,\n b): x = a + b, a loop over several lines, and a return 200 lines further on; by co_lnotab and
# co_linetable of these versions, and by dis.
OLD = {
    (3, 9): "00020802020102ff0802040102ff087f004b",
    (3, 10): "08020202020108ff0402020108ff007f044b",
}
OLD_LINES = {0: 3, 6: 3, 8: 5, 10: 6, 12: 5, 20: 7, 24: 8, 26: 7, 32: 7, 34: 209, 36: 209}

SOURCE = textwrap.dedent(
    """
    async def work(a, *, b=1):
        x = [
            i * a
            for i in range(
                b)
        ]
        try:
            with open(a) as file:
                for line in file: yield line
        except (ValueError,
                OSError):
            raise RuntimeError(
                a) from None
        finally:
            await b
    """
    + "\n" * 300
    + """
    class Shop(dict):
        limit = 3
        def total(self): return sum(
            value for value in self.values())
    """
)


def codes_in(code: CodeType) -> list[CodeType]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [code, *(found for one in inner for found in codes_in(one))]


@pytest.mark.parametrize("version", OLD)
def test_lines_before_3_11(version: tuple[int, int]) -> None:
    """Expected values are the output of these versions' dis."""
    table = bytes.fromhex(OLD[version])
    assert {offset: line_at(version, table, 1, offset) for offset in OLD_LINES} == OLD_LINES


@pytest.mark.parametrize("source", [SOURCE, "x = 1"])
def test_lines_of_the_running_version(source: str) -> None:
    """Every instruction of every code object, also of the standard library's largest module."""
    version = sys.version_info[:2]
    with open(dis.__file__, encoding="utf-8") as file:
        library = compile(file.read(), "dis.py", "exec")
    codes = codes_in(compile(source, "made.py", "exec")) + codes_in(library)
    assert len(codes) > 20
    for code in codes:
        for start, end, line in code.co_lines():
            for offset in range(start, end, 2):
                assert line_at(version, code.co_linetable, code.co_firstlineno, offset) == line


@pytest.mark.parametrize("version", [(3, 9), (3, 10), (3, 11), (3, 14)])
@pytest.mark.parametrize("table", [b"", b"\x01", bytes(range(256)), b"\xff" * 99, b"\xe9" + b"\x7f" * 500])
def test_a_malformed_table_ends_the_search(version: tuple[int, int], table: bytes) -> None:
    """Whatever it says, the answer is a number or None."""
    for offset in (0, 2, 5_000, 1 << 31):
        assert isinstance(line_at(version, table, 7, offset), int | None)


@pytest.mark.parametrize("form", [13, 14])
def test_a_number_ends_after_32_bits(form: int) -> None:
    """Reading one of a million digits to its end takes hours."""
    endless = bytes([0x80 | form << 3]) + b"\x7f" * (1 << 20)
    line = line_at((3, 11), endless, 7, 0)
    assert line is not None
    assert abs(line) < 1 << 36
