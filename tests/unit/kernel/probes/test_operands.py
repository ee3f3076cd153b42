"""Arguments of static probes, as assemblers write them."""

from __future__ import annotations

import numpy as np
import pytest

from bpfleakd.kernel import abi
from bpfleakd.kernel.probes.operands import OperandKind, packed_operands

NONE = abi.NO_REGISTER


@pytest.mark.parametrize(
    ("text", "kind", "base", "index", "scale_shift", "displacement", "unused_bits", "is_signed"),
    [
        ("8@%rdi", OperandKind.REGISTER, 7, NONE, 0, 0, 0, False),
        ("-4@%eax", OperandKind.REGISTER, 0, NONE, 0, 0, 32, True),
        ("1@%r15b", OperandKind.REGISTER, 15, NONE, 0, 0, 56, False),
        ("2@%bp", OperandKind.REGISTER, 5, NONE, 0, 0, 48, False),
        ("8@$-1", OperandKind.CONSTANT, NONE, NONE, 0, -1, 0, False),
        ("8@$18446744073709551615", OperandKind.CONSTANT, NONE, NONE, 0, -1, 0, False),
        ("8@-24(%rbp)", OperandKind.MEMORY, 5, NONE, 0, -24, 0, False),
        ("8@(%rsp)", OperandKind.MEMORY, 4, NONE, 0, 0, 0, False),
        ("8@0x10(%rax,%r12,4)", OperandKind.MEMORY, 0, 12, 2, 16, 0, False),
        ("8@8(,%rcx,8)", OperandKind.MEMORY, NONE, 1, 3, 8, 0, False),
        ("8@(%rax,%rbx)", OperandKind.MEMORY, 0, 3, 0, 0, 0, False),
    ],
)
def test_an_operand_is_understood(
    text, kind, base, index, scale_shift, displacement, unused_bits, is_signed
) -> None:
    """Registers by their numbers in machine code, parts of them by how many bits they lack."""
    (found,) = np.frombuffer(packed_operands(text, 1), abi.PROBE_OPERANDS)["arguments"][0][:1]
    expected = (displacement, kind, base, index, scale_shift, unused_bits, is_signed, 0)
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8@",
        "8@%xmm0",
        "8@%ah",
        "16@%rdi",
        "8@counter(%rip)",
        "8@8(%eax)",
        "8@(%rax,%rbx,3)",
        "8@$99999999999999999999999",
        "8@rdi",
    ],
)
def test_what_is_not_understood_is_refused(text) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=r"understood|known|arguments"):
        packed_operands(text, 1)


def test_too_few_arguments_are_refused() -> None:
    """A probe by this name may have others."""
    with pytest.raises(ValueError, match="1 arguments, not 3"):
        packed_operands("8@%rdi", 3)
