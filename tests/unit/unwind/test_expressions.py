"""DWARF expressions: the known shapes, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.unwind.expressions import LazyPlt, RegisterContents, RegisterOffset, recognise

LAZY_PLT = bytes.fromhex("77088000 3f1a 3b 2a 33 24 22")


@pytest.mark.parametrize(
    ("expression", "meaning"),
    [
        ("7678", RegisterOffset(6, -8)),
        ("770823 08", RegisterOffset(7, 16)),
        ("765806", RegisterContents(6, -40, 0)),
        ("77a00106", RegisterContents(7, 160, 0)),
        ("77102306", RegisterOffset(7, 22)),
        ("7710062308", RegisterContents(7, 16, 8)),
        (LAZY_PLT.hex(), LazyPlt(8, 11)),
        (LAZY_PLT.replace(b"\x3b", b"\x3a").hex(), LazyPlt(8, 10)),
    ],
)
def test_known_shapes(expression: str, meaning: object) -> None:
    """Those that compilers, linkers and C libraries write."""
    assert recognise(bytes.fromhex(expression)) == meaning


@pytest.mark.parametrize(
    "expression",
    [
        b"",
        b"\x77",  # an operand is missing
        b"\x77\x08\x06\x06",  # twice dereferenced
        bytes.fromhex("7708 7900 38 1e 22 06 2308"),  # OpenSSL's *(rsp + 8 + r9 * 8) + 8
        LAZY_PLT.replace(b"\x77\x08", b"\x76\x08"),  # a PLT that is relative to rbp
        LAZY_PLT[:-1],
        b"\x03" + bytes(8),  # DW_OP_addr
        b"\x77" + b"\x80" * 12 + b"\x00",
    ],
)
def test_anything_else_is_not_understood(expression: bytes) -> None:
    """No guess is better than a wrong one."""
    assert recognise(expression) is None


@given(st.binary(max_size=40))
def test_any_bytes(expression: bytes) -> None:
    """Never raises."""
    recognise(expression)
