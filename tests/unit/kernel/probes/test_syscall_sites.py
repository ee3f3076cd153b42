"""Places that make system calls: those that the file's own code bears out, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.kernel.probes.points import FunctionProbe, SearchedFile, search_file

from ...elf.building import assembled
from ...helping import helpers

PROGRAM = """
.globl call
.type call, @function
call:
.cfi_startproc
{before}
site: mov ${number}, %eax
syscall
behind: {behind}
{after}
ret
.cfi_endproc
.size call, . - call
"""
RIGHT = {"before": "nop", "number": "9", "behind": "cmp $-4095, %rax", "after": "nop"}


def sites_of(directory: Path, **changed: str) -> list[FunctionProbe]:
    path = assembled(directory, PROGRAM.format(**RIGHT | changed))
    with path.open("rb") as file:
        return search_file(helpers(), SearchedFile(str(path), file.fileno()), [])


def test_the_instruction_behind_a_call_is_probed(tmp_path: Path) -> None:
    """`start` is where the call returns to: the address that the kernel itself reports."""
    (site,) = sites_of(tmp_path)

    code = (tmp_path / "program").read_bytes()
    assert (site.function, site.refusal, site.emulated) == ("return:mmap", "", False)
    assert code[site.start - 7 : site.start + 2] == bytes.fromhex("b8 09 00 00 00 0f 05 48 3d")
    assert site.offset == site.start


@pytest.mark.parametrize("behind", ["cmp $-4095, %rax", "test %rax, %rax"])
def test_a_jump_behind_a_comparison_is_cheaper(tmp_path: Path, behind: str) -> None:
    """The kernel emulates it, and the registers are the same there."""
    (site,) = sites_of(tmp_path, behind=behind, after="jae away; away: nop")

    code = (tmp_path / "program").read_bytes()
    assert site.emulated
    assert site.offset > site.start
    assert code[site.offset] == 0x73


def test_brk_stores_its_result_before_the_jump(tmp_path: Path) -> None:
    """As in glibc. Nothing but its result is needed; of other calls, the third argument is."""
    code = {"behind": "mov (%rip), %rdx", "after": "mov %rax, (%rdx); cmp %rdi, %rax; jb away; away: nop"}
    (brk,) = sites_of(tmp_path, number="12", **code)
    (mmap,) = sites_of(tmp_path, number="9", **code)

    assert (tmp_path / "program").read_bytes()[brk.offset] == 0x72
    assert brk.emulated
    assert (mmap.offset, mmap.emulated) == (mmap.start, False)


@pytest.mark.parametrize("after", ["mov $1, %eax", "mov %rdx, %rbp", "mov %rdx, %rsp", "mov $1, %al"])
def test_brk_is_probed_while_its_result_is_there(tmp_path: Path, after: str) -> None:
    (site,) = sites_of(tmp_path, number="12", behind="cmp %rdi, %rax", after=f"{after}; jb away; away: nop")
    assert site.offset == site.start


@pytest.mark.parametrize("after", ["there: jae away; away: jmp there", "mov $1, %eax; jae away; away: nop"])
def test_a_jump_with_other_registers_is_not_probed(tmp_path: Path, after: str) -> None:
    (site,) = sites_of(tmp_path, after=after)
    assert site.offset == site.start


@pytest.mark.parametrize(("number", "call"), [("11", "munmap"), ("25", "mremap")])
def test_calls_that_remove_addresses_are_probed_before_them_too(
    tmp_path: Path, number: str, call: str
) -> None:
    entry, behind = sites_of(tmp_path, number=number)

    assert (entry.function, behind.function) == (f"syscall:{call}", f"return:{call}")
    assert behind.start - entry.offset == 7


@pytest.mark.parametrize("number", ["0", "1", "13", "0x0a00"])
def test_other_calls_are_passed_over(tmp_path: Path, number: str) -> None:
    assert sites_of(tmp_path, number=number) == []


@pytest.mark.parametrize(
    "changed",
    [
        # The bytes of a call, within another instruction.
        {"before": "movabs $0x050f00000009b8, %rdx", "number": "1"},
        {"before": "jmp behind"},
        {"after": "jne behind"},
        {"before": "je site + 5"},
        {"behind": "hlt"},
        {"behind": "jmp *%rax"},
        {"behind": ".byte 0x06"},
    ],
    ids=["inside", "jump", "jump-back", "jump-to-call", "hlt", "indirect", "invalid"],
)
def test_what_cannot_be_probed_safely_is_refused(tmp_path: Path, changed: dict[str, str]) -> None:
    """A breakpoint inside an instruction would end the process, and who jumps behind has made no call."""
    (site,) = sites_of(tmp_path, **changed)
    assert "cannot be probed" in site.refusal


def test_code_of_no_known_function_is_refused(tmp_path: Path) -> None:
    source = PROGRAM.replace(".cfi_startproc", "").replace(".cfi_endproc", "")
    path = assembled(tmp_path, source.format(**RIGHT))
    with path.open("rb") as file:
        (site,) = search_file(helpers(), SearchedFile(str(path), file.fileno()), [])
    assert site.refusal
