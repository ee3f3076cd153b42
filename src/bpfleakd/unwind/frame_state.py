"""The state of a frame in DWARF's terms: where the CFA is and where the caller's registers are.

DWARF 5, section 6.4.1. Of the registers only those that the walker carries.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import NamedTuple


class How(IntEnum):
    """The kinds of register rules: where the caller's value is. `operand` is the operand of the rule.

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

    The CFA is `cfa_expression`, or cfa_register + cfa_offset if that is None.
    """

    cfa_register: int
    cfa_offset: int
    cfa_expression: bytes | None
    rbp: RegisterRule
    rsp: RegisterRule
    rip: RegisterRule
