"""Probe points: chosen by the rules in machine code made by the assembler, and in the real C library."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from bpfleakd import errors
from bpfleakd.elf.image import ElfImage
from bpfleakd.kernel.probes.points import (
    FunctionProbe,
    SearchedFile,
    WantedFunction,
    search_file,
)
from bpfleakd.kernel.probes.prologue import choose_probe_point
from bpfleakd.model.code.probe import FunctionRole
from bpfleakd.process.allocators import ALLOCATORS
from bpfleakd.process.mappings import read_mappings

from ...elf.building import assembled as library_of
from ...elf.building import compiled, nm, output_of
from ...helping import helpers

FIRST_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx")

# In each of the following, `probe:` marks where the probe point has to be.
EMULATED = {
    "push first": "probe: push %rbp; mov %rsp, %rbp; ret",
    "push of a high register": "probe: push %r12; push %rbp; ret",
    "endbr64 and push": "endbr64; probe: push %rbp; ret",
    "behind instructions that change nothing": "mov %rdi, %rax; lea 8(%rdi), %r10; probe: push %rbx; ret",
    "a compare that reads the arguments": "cmp %rsi, %rdi; probe: jb 1f; ret; 1: ret",
    "a long conditional jump": "test %rdi, %rdi; probe: je far; ret; .skip 200; far: ret",
    "nop": "probe: nop; ret",
    "a long nop is passed over": "nopl 8(%rax, %rax); probe: push %rbp; ret",
    "a nop with a prefix is passed over": "xchg %ax, %ax; probe: push %rbp; ret",
    "a jump to another function": "endbr64; probe: jmp other; .skip 200; other: ret",
    "a short jump": "probe: jmp 1f; nop; 1: ret",
    "a call, as instrumented programs begin with": "probe: call other; ret; other: ret",
    "a store into the program's data": "movb $1, data(%rip); probe: push %rbp; ret; data: .byte 0",
    "a loop behind it": "probe: push %rbp; 1: dec %rax; jne 1b; ret",
    "a recursive call": "f: probe: push %rbp; call f; pop %rbp; ret",
    "a loop to the entry itself": "f: probe: push %rbp; pop %rbp; jmp f",
}

# None of these instructions is emulated, so the entry is taken: the kernel single-steps the instruction
# there.
STEPPED = {
    "an argument register is overwritten": "xor %edi, %edi; push %rbp; ret",
    "the second argument is overwritten": "mov %rax, %rsi; push %rbp; ret",
    "the third argument, in part": "mov $1, %dl; push %rbp; ret",
    "an argument is overwritten by the way": "mul %rsi; push %rbp; ret",
    "the stack pointer moves": "sub $24, %rsp; push %rbp; ret",
    "the stack pointer moves by a pop": "pop %rax; push %rbp; ret",
    "the frame pointer is overwritten": "mov %rsp, %rbp; push %rbx; ret",
    "a back edge into the beginning": "mov %rdi, %rax; 1: push %rbp; dec %rax; jne 1b; ret",
    "a far back edge": "mov %rdi, %rax; 1: push %rbp; .skip 300, 0x90; jmp 1b",
    "nothing that is emulated": "mov %rdi, %rax; ret; push %rbp",
    "a jump through a register": "jmp *%rax; push %rbp",
    "a jump through a register with a prefix": "notrack jmp *%rax; push %rbp",
    "a jump with a prefix": ".byte 0xf2; jmp 1f; push %rbp; 1: ret",
    "pushes of anything but a register": "push $23; push (%rdi); push %rbp",
    "a push with the wrong prefix": "rex.W push %rbp; push %rbx; ret",
    "a pause": "pause; sub $8, %rsp; ret",
    "emulated only beyond the beginning": "mov %rdi, %rax; " * 20 + "push %rbp; ret",
    "what is no instruction": ".byte 0x06, 0x06; push %rbp",
}


def assembled(directory: Path, source: str) -> tuple[bytes, int]:
    """The machine code, and the place of `probe:` in it (0 without)."""
    unit, code = directory / "code.o", directory / "code.bin"
    (directory / "code.s").write_text(f".text\n{source.replace('; ', chr(10))}\n")
    output_of("as", "-o", unit, directory / "code.s")
    output_of("objcopy", "-O", "binary", "-j", ".text", unit, code)
    symbols = output_of("nm", unit)
    probe = re.search(r"^([0-9a-f]+) t probe$", symbols, re.MULTILINE)
    return code.read_bytes(), int(probe[1], 16) if probe else 0


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("source", EMULATED.values(), ids=EMULATED)
def test_the_first_emulated_instruction_is_taken(tmp_path: Path, source: str, release: bool) -> None:
    """It is passed by every call, before arguments and stack pointer change."""
    code, probe = assembled(tmp_path, source)
    assert choose_probe_point(code, release=release, arguments=FIRST_ARGUMENTS) == (probe, True)


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("source", STEPPED.values(), ids=STEPPED)
def test_the_entry_is_taken_where_nothing_else_will_do(tmp_path: Path, source: str, release: bool) -> None:
    """A cheap place where a call cannot be understood any more is worth nothing."""
    code, _probe = assembled(tmp_path, source)
    assert choose_probe_point(code, release=release, arguments=FIRST_ARGUMENTS) == (0, False)


@pytest.mark.parametrize("release", [False, True])
def test_no_probe_is_on_a_nop_of_five_bytes(tmp_path: Path, release: bool) -> None:
    """Compilers begin functions with it, to be patched (gcc -mnop-mcount). Linux 6.18 patches it."""
    code, probe = assembled(tmp_path, "nopl 8(%rax, %rax); probe: sub $24, %rsp; ret")
    assert choose_probe_point(code, release=release, arguments=FIRST_ARGUMENTS) == (probe, False)


def test_a_function_with_no_other_place_is_refused(tmp_path: Path) -> None:
    """Behind the nop, its loop begins."""
    source = "nopl 8(%rax, %rax)\n1: dec %rax\njne 1b\nret"
    text = f".globl f\n.type f, @function\nf: .cfi_startproc\n{source}\n.cfi_endproc\n.size f, . - f\n"
    with library_of(tmp_path, text).open("rb") as file:
        wanted = WantedFunction("f", ("rdi",), "", release=False)
        (probe,) = search_file(helpers(), SearchedFile("f", file.fileno()), [wanted])
    assert "nop of 5 bytes" in probe.refusal


FREE = "test %rdi, %rdi; check: je none; behind: push %rbp; ret; none: ret"


@pytest.mark.parametrize(("release", "label"), [(True, "behind"), (False, "check")])
def test_null_pointers_are_not_probed_in_releases(tmp_path: Path, release: bool, label: str) -> None:
    """free's probe lies behind its null check; any other function's must see every call."""
    code, probe = assembled(tmp_path, FREE.replace(label, "probe"))
    assert choose_probe_point(code, release=release, arguments=FIRST_ARGUMENTS) == (probe, True)


@pytest.mark.parametrize(
    "source",
    [
        "test %rdi, %rdi; probe: je 1f; lea -16(%rdi), %rdi; push %rbp; ret; 1: ret",
        "test %rdi, %rdi; probe: je 1f; mov %rdi, %rax; ret; 1: ret",
        "test %rsi, %rsi; probe: je 1f; push %rbp; ret; 1: ret",
        "test %rdi, %rdi; probe: jne 1f; push %rbp; ret; 1: ret",
        "test %rdi, %rdi; probe: je 2f; 1: push %rbp; ret; 2: jmp 1b",
    ],
    ids=[
        "overwritten behind it",
        "nothing behind it",
        "of another argument",
        "the other way",
        "joined again",
    ],
)
def test_a_null_check_is_itself_the_point_where_nothing_better_follows(tmp_path: Path, source: str) -> None:
    """A later point must see the argument, and only calls with a pointer; otherwise the branch is taken."""
    code, probe = assembled(tmp_path, source)
    assert choose_probe_point(code, release=True, arguments=FIRST_ARGUMENTS) == (probe, True)


@pytest.mark.parametrize("code", [b"", b"\xe8", b"\x0f"])
def test_no_code_or_half_an_instruction(code: bytes) -> None:
    """A symbol without a size, or code cut off: the entry, and no error."""
    assert choose_probe_point(code, release=False, arguments=FIRST_ARGUMENTS) == (0, False)


SOURCE = """
.globl takes
.type takes, @function
takes: mov %rdi, %rax; push %rbp; pop %rbp; ret
.size takes, . - takes
.globl gives_back
.type gives_back, @function
gives_back: test %rdi, %rdi; je 1f; push %rbx; pop %rbx; 1: ret
.size gives_back, . - gives_back
"""


def probe_points(
    file: Path, entries: Sequence[str], releases: Sequence[str]
) -> list[FunctionProbe] | errors.BpfleakdError:
    """Those of a file; `releases` are functions that free."""
    functions = [WantedFunction(name, FIRST_ARGUMENTS, "entry", release=False) for name in entries]
    functions += [WantedFunction(name, ("rdi",), "release", release=True) for name in releases]
    with file.open("rb") as opened:
        try:
            return search_file(helpers(), SearchedFile("file", opened.fileno()), functions)
        except errors.BpfleakdError as error:
            return error


class TestFiles:
    """The same in files, in a helper."""

    def test_offsets_are_those_of_the_file(self, tmp_path: Path) -> None:
        """At each offset the file has the byte of the chosen instruction; unknown functions are left out."""
        library = compiled(tmp_path, SOURCE, "-shared", "-nostdlib", "-Wl,-z,noseparate-code", suffix=".s")

        points = probe_points(library, ["takes", "absent"], ["gives_back"])

        chosen = {point.function: point for point in points}
        assert chosen.keys() == {"takes", "gives_back"}
        assert library.read_bytes()[chosen["takes"].offset] == 0x55  # push %rbp
        assert library.read_bytes()[chosen["gives_back"].offset] == 0x53  # push %rbx
        assert all(point.emulated for point in points)

    def test_a_file_that_is_no_elf(self, tmp_path: Path) -> None:
        """A file that merely has the name of a library."""
        file = tmp_path / "libc.so.6"
        file.write_bytes(b"#!/bin/sh\n")
        assert isinstance(probe_points(file, ["malloc"], ["free"]), errors.BadElf)

    def test_a_32_bit_library(self, tmp_path: Path) -> None:
        """Its code and calling convention differ: it is refused, and not disassembled as 64-bit code."""
        source = ".globl malloc; .type malloc, @function; malloc: push %ebp; pop %ebp; ret"
        library = compiled(
            tmp_path, source.replace("; ", "\n") + "\n", "-m32", "-shared", "-nostdlib", suffix=".s"
        )
        refusal = probe_points(library, ["malloc"], ["free"])
        assert isinstance(refusal, errors.BadElf)
        assert "not x86-64" in refusal.message


@pytest.fixture(scope="module")
def libc() -> Path:
    """The C library that this very process runs with."""
    name = re.compile(r"libc(-2\.\d+)?\.so(\.6)?")
    return next(Path(m.path) for m in read_mappings(os.getpid()) if name.fullmatch(Path(m.path).name))


@pytest.fixture(scope="module")
def points(libc: Path) -> Sequence[FunctionProbe]:
    functions = ALLOCATORS[0].functions
    releases = [function.name for function in functions if function.role is FunctionRole.RELEASE]
    entries = [function.name for function in functions if function.name not in releases]
    return [point for point in probe_points(libc, entries, releases) if ":" not in point.function]


class TestRealLibc:
    """The C library of this machine, against binutils."""

    def test_what_every_allocation_goes_through_is_found(self, points: Sequence[FunctionProbe]) -> None:
        """The four functions without which nothing works are there, and cheap to probe."""
        chosen = {point.function: point for point in points}
        for function in ("malloc", "free", "calloc", "realloc"):
            assert chosen[function].emulated, function

    def test_points_are_emulated_instructions_inside_their_functions(
        self, libc: Path, points: Sequence[FunctionProbe]
    ) -> None:
        """objdump sees an instruction begin at each point, of the kind that is claimed, within the symbol."""
        starts, ends = nm(libc, "-D"), ends_of_functions(libc)
        for point in points:
            with ElfImage.open(libc) as image:
                above_offset = starts[point.function] - (image.file_offset_of(starts[point.function]) or 0)
            vaddr = point.offset + above_offset
            assert starts[point.function] <= vaddr < ends[point.function], point

            listing = output_of(
                "objdump",
                "-d",
                "--no-show-raw-insn",
                f"--start-address={vaddr}",
                f"--stop-address={vaddr + 16}",
                libc,
            )
            instruction = re.search(rf"^\s+{vaddr:x}:\s+(.*)$", listing, re.MULTILINE)
            assert instruction, point
            emulated = re.match(r"push +%r|j[a-z]+ +[0-9a-f]|call +[0-9a-f]|nop$", instruction[1])
            assert bool(emulated) == point.emulated, (point, instruction[1])


def ends_of_functions(path: Path) -> dict[str, int]:
    rows = re.findall(r"^(\w+) (\w+) [TWi] (\S+)$", output_of("nm", "-D", "-S", path), re.MULTILINE)
    return {name.partition("@")[0]: int(start, 16) + int(size, 16) for start, size, name in rows}
