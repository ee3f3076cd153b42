"""The places of a static probe's arguments: converts a probe's note for the BPF programs.

An argument is `SIZE@OPERAND`: its size in bytes, negative if it is signed, and an operand in assembler
syntax: `$5`, `%rdi`, `8(%rsp)`, `(%rax,%rbx,8)`. The compiler may choose any register or memory.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from bpfleakd.kernel import abi


class OperandKind(IntEnum):
    """enum operand_kind of bpf/abi_probes.h."""

    CONSTANT = 0
    REGISTER = 1
    MEMORY = 2


# In the order of machine code.
_REGISTERS = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{n}" for n in range(8, 16)))
# The parts that begin with the lowest bits: an argument is at most as wide as its register.
_PARTS = {
    **{name: number for number, name in enumerate(_REGISTERS)},
    **{f"e{name[1:]}": number for number, name in enumerate(_REGISTERS[:8])},
    **{name[1:]: number for number, name in enumerate(_REGISTERS[:8])},
    **{f"{x}l": number for number, x in enumerate("acdb")},
    **{f"{name[1:]}l": number for number, name in enumerate(_REGISTERS[:8]) if number >= 4},
    **{f"r{n}{width}": n for n in range(8, 16) for width in "dwb"},
}
_NUMBER = r"[-+]?(?:0[xX][0-9a-fA-F]{1,16}|\d{1,20})"
_ARGUMENT = re.compile(
    rf"""(?P<size>-?[1248])@(?:
          \$(?P<constant>{_NUMBER})
        | %(?P<register>\w{{2,4}})
        | (?P<displacement>{_NUMBER})?\(
              (?:%(?P<base>r\w{{1,3}}))?
              (?:,%(?P<index>r\w{{1,3}})(?:,(?P<scale>[1248]))?)?\)
        )""",
    re.VERBOSE,
)
_WORD = 1 << 64


def packed_operands(arguments: str, count: int) -> bytes:
    """The first `count` arguments of a note as PROBE_OPERANDS; the rest is zero.

    Raises ValueError if there are fewer, or if one is not supported.
    """
    texts = arguments.split()
    if len(texts) < count:
        raise ValueError(f"{len(texts)} arguments, not {count}: {arguments[:80]!r}")
    packed = np.zeros(1, abi.PROBE_OPERANDS)
    for row, text in zip(packed["arguments"][0], texts[:count], strict=False):
        _fill(row, text)
    return packed.tobytes()


def _fill(row: np.void, text: str) -> None:
    found = _ARGUMENT.fullmatch(text)
    if found is None:
        raise ValueError(f"the argument {text[:80]!r} is not understood")
    size = int(found["size"])
    row["unused_bits"], row["is_signed"] = 64 - 8 * abs(size), size < 0
    row["base"] = row["index"] = abi.NO_REGISTER
    if found["constant"] is not None:
        row["kind"], row["displacement"] = OperandKind.CONSTANT, _signed(found["constant"])
    elif found["register"] is not None:
        row["kind"], row["base"] = OperandKind.REGISTER, _number(_PARTS, found["register"])
    else:
        whole = {name: number for number, name in enumerate(_REGISTERS)}
        row["kind"], row["displacement"] = OperandKind.MEMORY, _signed(found["displacement"] or "0")
        if found["base"]:
            row["base"] = _number(whole, found["base"])
        if found["index"]:
            row["index"] = _number(whole, found["index"])
            row["scale_shift"] = int(found["scale"] or 1).bit_length() - 1


def _number(registers: dict[str, int], name: str) -> int:
    if name not in registers:
        raise ValueError(f"%{name} is not a register that is known")
    return registers[name]


def _signed(text: str) -> int:
    number = int(text, 0) % _WORD
    return number - _WORD if number >> 63 else number
