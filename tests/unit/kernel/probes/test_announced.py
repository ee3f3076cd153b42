"""Static probes of samplers: those that the file's own code bears out, and no others."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bpfleakd.kernel.probes.points import FunctionProbe, SearchedFile, search_file

from ...elf.building import assembled
from ...helping import helpers

PROGRAM = """
.globl announce
.type announce, @function
announce:
.cfi_startproc
long: nopl 8(%rax, %rax)
push %rbx
.cfi_adjust_cfa_offset 8
here: nop
behind: mov $0x90909090, %eax
pop %rbx
.cfi_adjust_cfa_offset -8
ret
.cfi_endproc
.size announce, . - announce
.data
.balign 8
semaphore: .quad 0
.section .note.stapsdt, "", "note"
.balign 4
.4byte 2f - 1f, 4f - 3f, 3
1: .asciz "stapsdt"
2: .balign 4
3: .8byte {location}, 0, {semaphore}
.asciz "{provider}"
.asciz "{name}"
.asciz "{arguments}"
4: .balign 4
"""
RIGHT = {
    "location": "here",
    "semaphore": "semaphore",
    "provider": "otel_memory",
    "name": "free",
    "arguments": "8@%rdi",
}


def probes_of(directory: Path, **changed: str) -> list[FunctionProbe]:
    path = assembled(directory, PROGRAM.format(**RIGHT | changed))
    with path.open("rb") as file:
        found = search_file(helpers(), SearchedFile(str(path), file.fileno()), [])
    assert isinstance(found, list)
    return found


def test_a_probe_is_found(tmp_path) -> None:
    """Its offset is that of the nop, and the semaphore's that of its place in the file."""
    (probe,) = probes_of(tmp_path)

    code = (tmp_path / "program").read_bytes()
    assert (probe.function, probe.refusal, probe.arguments) == ("otel_memory:free", "", "8@%rdi")
    assert code[probe.offset - 1 : probe.offset + 2] == bytes.fromhex("53 90 b8")
    assert probe.emulated
    assert struct.unpack_from("Q", code, probe.semaphore) == (0,)


def test_the_places_of_the_library_are_found(tmp_path) -> None:
    """By their own provider; no other one's."""
    (probe,) = probes_of(tmp_path, provider="bpfleak")
    assert (probe.function, probe.refusal) == ("bpfleak:free", "")


def test_a_probe_without_a_semaphore_needs_none(tmp_path) -> None:
    """It announces to any breakpoint there."""
    (probe,) = probes_of(tmp_path, semaphore="0")
    assert (probe.semaphore, probe.refusal) == (0, "")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"location": "behind"}, "not a nop"),
        # A byte of 0x90 inside an instruction.
        ({"location": "behind + 1"}, "not a nop"),
        ({"location": "long"}, "a nop of 5 bytes"),
        ({"location": "semaphore"}, "not in an executable segment"),
        ({"location": "0xfffffffffffffff0"}, "not in an executable segment"),
        ({"semaphore": "semaphore + 1"}, "semaphore"),
        ({"semaphore": "announce"}, "semaphore"),
        ({"semaphore": "0xfffffffffffffff0"}, "semaphore"),
        ({"arguments": "8@%xmm0"}, "not a register"),
        ({"arguments": ""}, "arguments"),
        ({"name": "alloc"}, "arguments"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
def test_what_the_code_does_not_bear_out_is_refused(tmp_path, changed, reason) -> None:
    """A breakpoint anywhere else would end the process that runs into it."""
    (probe,) = probes_of(tmp_path, **changed)
    assert reason in probe.refusal


@pytest.mark.parametrize("changed", [{"provider": "otel"}, {"provider": "libc"}, {"name": "mmap"}])
def test_other_probes_are_passed_over(tmp_path, changed) -> None:
    """Those of other providers, and other ones of this."""
    assert probes_of(tmp_path, **changed) == []
