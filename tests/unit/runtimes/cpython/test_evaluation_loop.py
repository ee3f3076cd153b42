"""The evaluation loop's code, in a library that is laid out like an interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.elf.image import ElfImage
from bpfleakd.runtimes.cpython.evaluation_loop import code_ranges, has_fixed_frames

from ...elf.building import assembled, compiled, nm, output_of

# GCC moves code that it expects to run rarely elsewhere, with a separate FDE. The loop jumps into its middle,
# and to the beginning of other functions.
SOURCE = """
    .text
    .globl _PyEval_EvalFrameDefault
    .type _PyEval_EvalFrameDefault, @function
_PyEval_EvalFrameDefault:
    .cfi_startproc
    cmp $1, %edi
    je .Lfirst
    cmp $2, %edi
    jne .Lback
    jmp .Lsecond
.Lback:
    cmp $3, %edi
    je other
    cmp $4, %edi
    je another
    ret
    .cfi_endproc
    .size _PyEval_EvalFrameDefault, .-_PyEval_EvalFrameDefault
    .globl other
    .type other, @function
other:
    .cfi_startproc
    ret
    .cfi_endproc
    .size other, .-other
    .section .text.unlikely, "ax", @progbits
    .type another, @function
another:
    .cfi_startproc
    ret
    .cfi_endproc
    .size another, .-another
cold:
    .cfi_startproc
    nop
.Lfirst:
    nop
.Lsecond:
    nop
    jmp .Lback
    .cfi_endproc
cold_end:
    .size cold, .-cold
"""


def test_the_cold_part_is_found(tmp_path: Path) -> None:
    """Wherever it is, also if the file is stripped; no other function is mistaken for it."""
    library = assembled(tmp_path, SOURCE)
    symbols = nm(library)
    stripped = tmp_path / "stripped"
    output_of("strip", "-o", stripped, library)
    for path in (library, stripped):
        with ElfImage.open(path) as image:
            (start, _), *others = code_ranges(image)
        assert start == symbols["_PyEval_EvalFrameDefault"]
        assert others == [(symbols["cold"], symbols["cold_end"])]


@pytest.mark.parametrize("instruction", ["and $-32, %rsp", "and $-4096, %rsp"])
def test_a_loop_that_aligns_its_stack_has_no_fixed_frames(tmp_path: Path, instruction: str) -> None:
    """The distance of a local variable from the end of its frame then differs from call to call."""
    plain = assembled(tmp_path, SOURCE.replace("    nop\n", "    and $-16, %rsp\n", 1))
    with ElfImage.open(plain) as image:
        assert has_fixed_frames(image, code_ranges(image))
    # The first in the cold part.
    with ElfImage.open(assembled(tmp_path, SOURCE.replace("    nop\n", f"    {instruction}\n", 1))) as image:
        assert not has_fixed_frames(image, code_ranges(image))


def test_a_program_without_a_loop_has_no_ranges(tmp_path: Path) -> None:
    """And causes no error."""
    with ElfImage.open(compiled(tmp_path, "int main(void) { return 0; }")) as image:
        assert code_ranges(image) == ()
