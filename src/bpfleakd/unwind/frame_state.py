"""The state of a frame in DWARF's terms: where the CFA is and where the caller's registers are.

DWARF 5, section 6.4.1. Of the registers only those that the walker carries.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import NamedTuple

__all__ = ["UNSPECIFIED", "FrameState", "How", "RegisterRule"]


class How(IntEnum):
    """What a register rule says of the caller's value. `operand` in a rule means what is written here.

    Integers, since states are hashed a million times and plain enum members hash in Python.
    """

    UNSPECIFIED = auto()
    SAME_VALUE = auto()
    UNDEFINED = auto()
    OFFSET = auto()  # saved at CFA + operand
    VAL_OFFSET = auto()  # is CFA + operand
    REGISTER = auto()  # is in register operand
    EXPRESSION = auto()  # saved where the expression points
    VAL_EXPRESSION = auto()  # is what the expression computes


RegisterRule = tuple[How, int | bytes]
UNSPECIFIED: RegisterRule = (How.UNSPECIFIED, 0)


class FrameState(NamedTuple):
    """The rules of rbp, rsp and rip (the return address) and of the CFA, at one address.

    The CFA is `cfa_expression`, or cfa_register + cfa_offset where that is None.
    """

    cfa_register: int
    cfa_offset: int
    cfa_expression: bytes | None
    rbp: RegisterRule
    rsp: RegisterRule
    rip: RegisterRule
