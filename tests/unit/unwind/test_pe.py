"""Unwind tables of PE files."""

from __future__ import annotations

import random
import struct

import pytest

from bpfleakd.errors import BadElf
from bpfleakd.unwind.pe import build_pe_table, is_pe, pe_sections_of
from bpfleakd.unwind.rules import GAP, STOP, CfaKind, RbpKind, UnwindRule
from bpfleakd.unwind.table import UnwindTable, check

TEXT, DATA = 0x2000, 0x1000
FILE_TEXT, FILE_DATA = 0x400, 0x200
PUSH_RBP, PUSH_RBX = 0x50, 0x30


def info(*codes: bytes, prologue: int = 0, flags: int = 0, frame: int = 0, behind: bytes = b"") -> bytes:
    """An UNWIND_INFO; the codes as the file has them, the last instruction first."""
    slots = b"".join(codes)
    padding = bytes(len(slots) % 4)
    return bytes([1 | flags << 3, prologue, len(slots) // 2, frame]) + slots + padding + behind


def pe(functions: list[tuple[int, int, bytes]], *, machine: int = 0x8664 ^ 0x7B79) -> bytes:
    """A file with these functions: start and end in the text, and their UNWIND_INFO."""
    infos, table = b"", b""
    for start, end, unwind in functions:
        table += struct.pack("<III", TEXT + start, TEXT + end, DATA + 12 * len(functions) + len(infos))
        infos += unwind + bytes(-len(unwind) % 4)
    data = (table + infos).ljust(0x200, b"\0")
    optional = struct.pack("<H", 0x20B).ljust(108, b"\0") + struct.pack("<I", 16)
    directories = bytes(24) + struct.pack("<II", DATA, len(table)) + bytes(96)
    sections = b".data".ljust(8, b"\0") + struct.pack("<IIII", 0x200, DATA, 0x200, FILE_DATA) + bytes(16)
    sections += b".text".ljust(8, b"\0") + struct.pack("<IIII", 0x600, TEXT, 0x600, FILE_TEXT)
    sections = sections.ljust(76, b"\0") + struct.pack("<I", 0x2000_0000)
    head = struct.pack("<4sHHIIIHH", b"PE\0\0", machine, 2, 0, 0, 0, len(optional) + len(directories), 0)
    start = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40)
    return (start + head + optional + directories + sections).ljust(FILE_DATA, b"\0") + data + bytes(0x600)


def table_of(data: bytes) -> UnwindTable:
    table = build_pe_table(pe_sections_of(data), 10_000)
    check(table)
    return table


def rules_at(table: UnwindTable, *offsets: int) -> list[UnwindRule]:
    return [table.lookup(TEXT + offset) for offset in offsets]


def test_a_frame_without_frame_pointer() -> None:
    """push rbp (1 byte), push rbx (2), sub rsp, 40 (6); the saved rbp is the caller's."""
    unwind = info(bytes([6, 0x42]), bytes([2, PUSH_RBX]), bytes([1, PUSH_RBP]), prologue=6)
    table = table_of(pe([(0x10, 0x40, unwind)]))
    at_16 = (RbpKind.AT_CFA, -16)
    assert rules_at(table, 0x0F, 0x10, 0x11, 0x12, 0x16, 0x3F, 0x40) == [
        GAP,
        UnwindRule(CfaKind.RSP, 8),
        UnwindRule(CfaKind.RSP, 16, 0, *at_16),
        UnwindRule(CfaKind.RSP, 24, 0, *at_16),
        UnwindRule(CfaKind.RSP, 64, 0, *at_16),
        UnwindRule(CfaKind.RSP, 64, 0, *at_16),
        GAP,
    ]


@pytest.mark.parametrize(
    ("codes", "depth"),
    [
        ((bytes([7, 0x01]) + struct.pack("<H", 0x100),), 8 + 0x800),
        ((bytes([7, 0x11]) + struct.pack("<I", 0x12340),), 8 + 0x12340),
        ((bytes([9, 0x68]) + struct.pack("<H", 2), bytes([4, 0xF2])), 8 + 128),
    ],
)
def test_sizes_of_frames(codes: tuple[bytes, ...], depth: int) -> None:
    """Large ones, and instructions that save other registers."""
    table = table_of(pe([(0, 0x40, info(*codes))]))
    assert rules_at(table, 0x3F) == [UnwindRule(CfaKind.RSP, depth)]


@pytest.mark.parametrize(
    ("code", "frame"), [(bytes([9, 0x03]), 0x25), (bytes([9, 0x0B]) + struct.pack("<I", 2), 0x05)]
)
def test_a_frame_of_a_size_that_varies(code: bytes, frame: int) -> None:
    """push rbp, sub rsp, 64, lea rbp, [rsp + 32]: from there rbp is what counts."""
    table = table_of(pe([(0, 0x40, info(code, bytes([5, 0x72]), bytes([1, PUSH_RBP]), frame=frame))]))
    assert rules_at(table, 5, 9) == [
        UnwindRule(CfaKind.RSP, 80, 0, RbpKind.AT_CFA, -16),
        UnwindRule(CfaKind.RBP, 48, 0, RbpKind.AT_CFA, -16),
    ]


def test_a_register_that_is_stored_and_not_pushed() -> None:
    """sub rsp, 64; mov [rsp + 48], rbp."""
    stored = bytes([9, 0x54]) + struct.pack("<H", 6)
    table = table_of(pe([(0, 0x40, info(stored, bytes([4, 0x72])))]))
    assert rules_at(table, 4, 9) == [
        UnwindRule(CfaKind.RSP, 72),
        UnwindRule(CfaKind.RSP, 72, 0, RbpKind.AT_CFA, -24),
    ]


def test_a_part_of_a_function_that_lies_elsewhere() -> None:
    """It begins with the frame of the part that it refers to."""
    parent_at = DATA + 24
    parent = info(bytes([1, PUSH_RBP]), behind=b"")
    part = info(bytes([4, 0x32]), flags=4, behind=struct.pack("<III", TEXT, TEXT + 0x10, parent_at))
    table = table_of(pe([(0, 0x10, parent), (0x20, 0x30, part)]))
    assert rules_at(table, 0x20, 0x2F) == [
        UnwindRule(CfaKind.RSP, 16, 0, RbpKind.AT_CFA, -16),
        UnwindRule(CfaKind.RSP, 48, 0, RbpKind.AT_CFA, -16),
    ]


def test_what_cannot_be_understood_ends_the_walk() -> None:
    """A short stack is honest, a wrong one is not."""
    table = table_of(pe([(0, 0x10, info(bytes([1, 0x0D]))), (0x10, 0x20, b"\xff\xff\xff\xff")]))
    assert rules_at(table, 1, 0x11) == [STOP, STOP]


@pytest.mark.parametrize(
    "data", [b"MZ", b"MZ".ljust(0x200, b"\0"), pe([]), pe([(0, 16, info())], machine=0x14C)]
)
def test_what_has_no_table(data: bytes) -> None:
    assert is_pe(data)
    with pytest.raises(BadElf):
        table_of(data)


def test_damaged_files_raise_nothing_else() -> None:
    """And never make a table that breaks its rules."""
    source = random.Random(17)
    unwind = info(bytes([6, 0x42]), bytes([2, PUSH_RBX]), bytes([1, PUSH_RBP]), prologue=6)
    whole = pe([(16 * number, 16 * number + 16, unwind) for number in range(8)])
    for _attempt in range(2_000):
        data = bytearray(whole)
        for _damage in range(source.randint(1, 6)):
            data[source.randrange(0x300)] = source.randrange(256)
        try:
            table_of(bytes(data[: source.choice((len(data), source.randint(1, len(data))))]))
        except BadElf:
            continue
