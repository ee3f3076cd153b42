"""The walker's rules, one by one, on hand-made stacks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bpfleakd.model.code.stack import StackEnd
from bpfleakd.unwind.build import build_table
from bpfleakd.unwind.table import UnwindTable

from .hand_made import DEF_CFA_RBP_16, RBP_AT_MINUS_16, EhFrame, def_cfa_offset
from .reference_walk import FrameRegisters, walk

BIAS = 0x7000_0000_0000
STACK = 0x7FFF_0000_0000

# Functions of 16 bytes each, by their file address.
LEAF, WITH_RBP, START, STOPS, SIGNAL, LOSES_RBP, PLT, REALIGNED, RBP_AT_RBP = range(0x1000, 0x1900, 0x100)
IN_GAP = 0x5000
JIT = 0x1234_5000


def table() -> UnwindTable:
    frame = EhFrame()
    cie = frame.cie()
    signal_cie = frame.cie(augmentation=b"zRS")
    trampoline = b"\x0f\x04\x77\xa0\x01\x06" + b"\x10\x06\x03\x77\xf8\x00" + b"\x10\x10\x03\x77\xa8\x01"
    frame.fde(cie, LEAF, 16)
    frame.fde(cie, WITH_RBP, 16, DEF_CFA_RBP_16 + RBP_AT_MINUS_16)
    frame.fde(cie, START, 16, b"\x07\x10")
    frame.fde(cie, STOPS, 16, b"\x0c\x00\x08")
    frame.fde(signal_cie, SIGNAL - 1, 17, trampoline)
    frame.fde(cie, LOSES_RBP, 16, b"\x07\x06")
    frame.fde(cie, PLT, 16, b"\x0f\x0b\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22")
    frame.fde(cie, REALIGNED, 16, b"\x0f\x03\x76\x70\x06" + b"\x10\x06\x02\x76\x00")
    frame.fde(cie, RBP_AT_RBP, 16, def_cfa_offset(24) + b"\x10\x06\x02\x76\x08")
    return build_table(frame.sections())


TABLE = table()


def find(address: int) -> tuple[UnwindTable, int] | None:
    return (TABLE, BIAS) if TABLE.text_start <= address - BIAS < TABLE.text_end else None


def ends(
    rip: int, memory: Mapping[int, int], rsp: int = STACK, rbp: int = 0, frames_max: int = 256, **how: bool
) -> tuple[list[int], StackEnd]:
    """Walk; `rip` and the addresses returned are relative to the file if they are in it."""
    rip += BIAS if rip < 0x10000 else 0
    stack = walk(FrameRegisters(rip, rsp, rbp), memory.get, find, frames_max, **how)
    return [a - BIAS if find(a) or find(a - 1) else a for a in stack.addresses], stack.end


def words(*values: int, at: int = STACK) -> dict[int, int]:
    return {at + 8 * index: value for index, value in enumerate(values)}


def test_up_to_the_first_function() -> None:
    """An undefined return address is the bottom."""
    memory = words(BIAS + LEAF + 5, BIAS + START + 5)

    assert ends(LEAF, memory) == ([LEAF, LEAF + 5, START + 5], StackEnd.BOTTOM)


def test_a_return_address_belongs_to_the_byte_before_it() -> None:
    """A call may be a function's last instruction; the first rip is exact."""
    memory = words(BIAS + LEAF + 16, BIAS + START + 16)

    assert ends(LEAF, memory) == ([LEAF, LEAF + 16, START + 16], StackEnd.BOTTOM)
    assert ends(START + 16, {}, rbp=0) == ([START + 16], StackEnd.FRAME_POINTER_END)


def test_a_return_address_of_zero_is_the_bottom() -> None:
    """Threads may be started with nothing below their first function."""
    assert ends(LEAF, words(0)) == ([LEAF], StackEnd.BOTTOM)


def test_rbp_is_followed_and_restored() -> None:
    """A frame with rbp, whose caller has one, too."""
    outer, inner = STACK + 0x100, STACK + 0x40
    memory = words(outer, BIAS + WITH_RBP + 8, at=inner) | words(0, BIAS + START + 8, at=outer)

    assert ends(WITH_RBP, memory, rbp=inner) == ([WITH_RBP, WITH_RBP + 8, START + 8], StackEnd.BOTTOM)


def test_gaps_and_jit_code_follow_rbp() -> None:
    """No file, or no FDE: rbp counts as a frame pointer, until a rule applies again."""
    inner, outer = STACK + 0x40, STACK + 0x100
    memory = words(outer, JIT, at=inner) | words(0x55, BIAS + LEAF + 3, at=outer)
    memory |= words(BIAS + START + 1, at=outer + 16)

    expected = [IN_GAP, JIT, LEAF + 3, START + 1]
    assert ends(IN_GAP, memory, rbp=inner) == (expected, StackEnd.BOTTOM)


@pytest.mark.parametrize("rbp", [0, STACK - 8, STACK + 4, STACK + 0x8000])
def test_an_rbp_that_is_none(rbp: int) -> None:
    """Zero, below rsp, unaligned, unreadable: the chain ends here."""
    assert ends(JIT, words(0, 0, 0), rbp=rbp) == ([JIT], StackEnd.FRAME_POINTER_END)


def test_at_the_entry_of_a_function_without_information() -> None:
    """The return address is at rsp; following rbp would lose the caller."""
    memory = words(BIAS + START + 5)

    assert ends(IN_GAP, memory, at_entry=True) == ([IN_GAP, START + 5], StackEnd.BOTTOM)
    assert ends(LEAF, memory, at_entry=True) == ([LEAF, START + 5], StackEnd.BOTTOM)


def test_a_signal_frame() -> None:
    """The interrupted registers come from the ucontext, and the interrupted rip is exact."""
    ucontext = STACK + 8
    other_stack = 0x6000_0000_0000
    memory = words(BIAS + SIGNAL) | {
        ucontext + 120: 0xAA,
        ucontext + 160: other_stack,
        ucontext + 168: BIAS + START,
        other_stack: 0,
    }

    # START is the first byte of its function: one byte before it is another.
    assert ends(LEAF, memory) == ([LEAF, SIGNAL, START], StackEnd.BOTTOM)


def test_a_rule_that_stops() -> None:
    """The end of the walk states that no rule expresses the frame."""
    assert ends(STOPS, words(1, 2)) == ([STOPS], StackEnd.NO_RULE)


@pytest.mark.parametrize("function", [WITH_RBP, REALIGNED, RBP_AT_RBP])
def test_a_lost_rbp_is_not_used(function: int) -> None:
    """A rule needs the rbp that an earlier frame has overwritten."""
    memory = words(BIAS + function + 2) | {8: 1, 0: 1}

    assert ends(LOSES_RBP, memory, rbp=STACK + 0x40) == ([LOSES_RBP, function + 2], StackEnd.NO_RULE)


def test_the_lazy_plt() -> None:
    """In the second half of an entry one more word is on the stack."""
    assert ends(PLT + 10, words(BIAS + START + 1)) == ([PLT + 10, START + 1], StackEnd.BOTTOM)
    assert ends(PLT + 11, words(9, BIAS + START + 1)) == ([PLT + 11, START + 1], StackEnd.BOTTOM)


def test_a_realigned_stack() -> None:
    """The CFA was put into memory below rbp, and so was the caller's rbp."""
    rbp, cfa = STACK + 0x40, STACK + 0x200
    memory = {rbp - 16: cfa, rbp: STACK + 0x300, cfa - 8: BIAS + WITH_RBP + 3}
    memory |= words(0, BIAS + START + 1, at=STACK + 0x300)

    assert ends(REALIGNED, memory, rbp=rbp) == ([REALIGNED, WITH_RBP + 3, START + 1], StackEnd.BOTTOM)


def test_unreadable_stack() -> None:
    """Wherever it is missing: the return address, the rbp, the address of the CFA, the ucontext."""
    rbp = STACK + 0x40
    assert ends(LEAF, {}) == ([LEAF], StackEnd.READ_FAULT)
    assert ends(WITH_RBP, {rbp + 8: 1}, rbp=rbp) == ([WITH_RBP], StackEnd.READ_FAULT)
    assert ends(REALIGNED, {}, rbp=rbp) == ([REALIGNED], StackEnd.READ_FAULT)
    assert ends(SIGNAL, {}) == ([SIGNAL], StackEnd.READ_FAULT)


def test_a_cfa_that_is_not_above_rsp() -> None:
    """Stacks grow down, so rbp was not what the rule assumes."""
    assert ends(WITH_RBP, {}, rbp=STACK - 16) == ([WITH_RBP], StackEnd.NO_RULE)
    assert ends(WITH_RBP, {}, rbp=STACK - 4096) == ([WITH_RBP], StackEnd.NO_RULE)


def test_depth() -> None:
    """At most the requested number of frames, and the end says so."""
    memory = words(*[BIAS + LEAF + 1] * 50)

    addresses, end = ends(LEAF, memory, frames_max=23)

    assert (len(addresses), end) == (23, StackEnd.DEPTH)
