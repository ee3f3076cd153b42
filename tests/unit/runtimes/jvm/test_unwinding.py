"""Unwind tables of a code cache: what holds at each address of it."""

from __future__ import annotations

import numpy as np
import pytest

from bpfleakd.runtimes.jvm.code_cache import CodeHeap, CodeSnapshot
from bpfleakd.runtimes.jvm.unwinding import code_tables
from bpfleakd.unwind.rules import STOP, CfaKind, RbpKind, UnwindRule
from bpfleakd.unwind.table import UnwindTable, check

HEAP = CodeHeap(0x7F00_0000_0000, 0x7F00_0001_0000, 0x1000, 7)


def snapshot(*blobs: tuple[int, int, int], interpreter: tuple[int, int] = (0, 0)) -> CodeSnapshot:
    """Code at these (start, end, words of a frame), relative to the heap."""
    starts, ends, words = np.array(blobs, np.uint64).reshape(-1, 3).T
    return CodeSnapshot(
        heaps=(HEAP,),
        blobs=starts + np.uint64(HEAP.start),
        names=np.zeros(len(starts), np.uint64),
        starts=starts + np.uint64(HEAP.start),
        ends=ends + np.uint64(HEAP.start),
        frame_words=words.astype(np.uint32),
        methods=np.zeros(len(starts), np.uint64),
        interpreter=interpreter,
    )


def table_of(code: CodeSnapshot) -> UnwindTable:
    (table,) = code_tables(code)
    check(table)
    return table


@pytest.mark.parametrize(
    ("offset", "words"), [(0x100, 4), (0x1FF, 4), (0x200, 12), (0x2FFF, 12), (0x5000, 4), (0x5080, 4)]
)
def test_a_frame_is_as_large_as_its_blob_says(offset: int, words: int) -> None:
    """Also in code of several pages; the caller's rbp is below the return address."""
    table = table_of(snapshot((0x100, 0x200, 4), (0x200, 0x3000, 12), (0x5000, 0x5100, 4)))
    rule = UnwindRule(CfaKind.RSP, 8 * words, rbp=RbpKind.AT_CFA, rbp_offset=-16)
    assert table.lookup(HEAP.start + offset) == rule


@pytest.mark.parametrize("offset", [0x0, 0xFF, 0x3000, 0x4FFF, 0x5100, 0xFFFF])
def test_code_that_is_not_known_ends_the_walk(offset: int) -> None:
    """Compiled code may have anything in rbp."""
    table = table_of(snapshot((0x100, 0x200, 4), (0x200, 0x3000, 12), (0x5000, 0x5100, 4)))
    assert table.lookup(HEAP.start + offset) == STOP


def test_the_interpreter_and_stubs() -> None:
    """Both keep rbp; the interpreter's blob identifies its frames."""
    code = snapshot(
        (0x100, 0x4000, 0), (0x4000, 0x4100, 0), interpreter=(HEAP.start + 0x180, HEAP.start + 0x4000)
    )
    table = table_of(code)
    interpreted = table.lookup(HEAP.start + 0x2345)
    assert (interpreted.cfa, interpreted.cfa_offset, interpreted.rbp_offset) == (CfaKind.MANAGED, -24, -48)
    assert (interpreted.position_slot, interpreted.caller_slot) == (-8, -1)
    stub = table.lookup(HEAP.start + 0x4050)
    assert stub == UnwindRule(CfaKind.RBP, 16, rbp=RbpKind.AT_CFA, rbp_offset=-16)


def test_a_machine_that_has_not_started() -> None:
    """No heap, or nothing in it: no table."""
    assert code_tables(CodeSnapshot(())) == []
    assert code_tables(snapshot()) == []
