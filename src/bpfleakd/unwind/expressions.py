"""DWARF expressions: those few that compilers and C libraries put into x86-64 call frame information.

An expression is a little stack program. Nothing is evaluated here: a few shapes are recognised, and the value
that they compute is used. Every other expression is None, and the walk ends where it applies. The operations
are those of DWARF 5, section 2.5.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from bpfleakd.unwind.encoding import read_sleb128, read_uleb128
from bpfleakd.unwind.malformed import MalformedCfi
from bpfleakd.unwind.registers import RIP, RSP


class RegisterOffset(NamedTuple):
    """register + offset"""

    register: int
    offset: int


class RegisterContents(NamedTuple):
    """*(register + offset) + addend"""

    register: int
    offset: int
    addend: int


class LazyPlt(NamedTuple):
    """rsp + offset, and 8 more where (rip & 15) >= threshold

    A lazy procedure linkage table has entries of 16 bytes and pushes in the middle of each; where exactly
    depends on the linker's flavour of it.
    """

    offset: int
    threshold: int


_DEREF, _AND, _PLUS, _PLUS_UCONST, _SHL, _GE = 0x06, 0x1A, 0x22, 0x23, 0x24, 0x2A
_LIT0, _LIT31 = 0x30, 0x4F
_BREG0, _BREG31 = 0x70, 0x8F
_WITHOUT_OPERAND = {_DEREF: "deref", _AND: "and", _PLUS: "plus", _SHL: "shl", _GE: "ge"}


@lru_cache(maxsize=1_024)
def recognise(expression: bytes) -> RegisterOffset | RegisterContents | LazyPlt | None:
    """Return what the expression computes, None for a shape that is not known here."""
    match _operations(expression):
        case (("breg", int(register), int(offset)),):
            return RegisterOffset(register, offset)
        case (("breg", int(register), int(offset)), ("plus_uconst", int(addend))):
            return RegisterOffset(register, offset + addend)
        case (("breg", int(register), int(offset)), ("deref",)):
            return RegisterContents(register, offset, 0)
        case (("breg", int(register), int(offset)), ("deref",), ("plus_uconst", int(addend))):
            return RegisterContents(register, offset, addend)
        case (
            ("breg", register, int(offset)),
            ("breg", program_counter, 0),
            ("lit", 15),
            ("and",),
            ("lit", int(threshold)),
            ("ge",),
            ("lit", 3),
            ("shl",),
            ("plus",),
        ) if (register, program_counter) == (RSP, RIP):
            return LazyPlt(offset, threshold)
        case _:
            return None


def _operations(expression: bytes) -> tuple[tuple[str | int, ...], ...] | None:
    operations: list[tuple[str | int, ...]] = []
    position = 0
    try:
        while position < len(expression):
            code, position = expression[position], position + 1
            if _BREG0 <= code <= _BREG31:
                offset, position = read_sleb128(expression, position)
                operations.append(("breg", code - _BREG0, offset))
            elif code == _PLUS_UCONST:
                addend, position = read_uleb128(expression, position)
                operations.append(("plus_uconst", addend))
            elif _LIT0 <= code <= _LIT31:
                operations.append(("lit", code - _LIT0))
            elif code in _WITHOUT_OPERAND:
                operations.append((_WITHOUT_OPERAND[code],))
            else:
                return None
    except (IndexError, MalformedCfi):
        return None
    return tuple(operations)
