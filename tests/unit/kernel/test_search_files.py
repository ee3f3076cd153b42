"""Functions to probe in files: where their arguments are, and which only forward calls."""

from __future__ import annotations

import contextlib
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
from bpfleakd.kernel.probes.prologue import argument_registers, choose_probe_point

from ..elf.building import compiled, nm, output_of
from ..helping import helpers
from .probes.test_points import assembled

# `probe:` marks the probe point of a function that uses its arguments in rdi and rsi, with the registers that
# have them there.
MOVED = {
    "they have not moved": ("mov %rdi, %rax; probe: push %rbx; ret", ("rdi", "rsi")),
    "the first is overwritten by the second": (
        "mov %rsi, %rdx; mov %rdi, %rsi; mov %fs:0, %rdi; probe: push %rbx; ret",
        ("rsi", "rdx"),
    ),
    "they change places": (
        "mov %rdi, %rax; mov %rsi, %rdi; mov %rax, %rsi; probe: jmp far; .skip 200; far: ret",
        ("rsi", "rdi"),
    ),
    "a copy of a copy": (
        "mov %rdi, %rax; mov %rax, %r11; xor %edi, %edi; xor %eax, %eax; probe: push %rbx",
        ("r11", "rsi"),
    ),
    "an argument that does not matter is overwritten": (
        "xor %ecx, %ecx; mov $1, %dl; probe: push %rbx",
        ("rdi", "rsi"),
    ),
    "the one that was not overwritten is preferred": ("mov %rsi, %rdx; probe: push %rbx", ("rdi", "rsi")),
}
LOST = {
    "half a copy is none": "mov %edi, %eax; xor %edi, %edi; push %rbx; ret",
    "the copy is overwritten, too": "mov %rdi, %rax; xor %edi, %edi; mov $1, %al; push %rbx; ret",
    "stored in memory": "mov %rdi, -8(%rsp); xor %edi, %edi; push %rbx; ret",
    "kept where callees find what is their callers'": "mov %rdi, %r12; xor %edi, %edi; push %rbx; ret",
    "added to": "mov %rdi, %rax; add $16, %rdi; inc %rax; push %rbx; ret",
}


def searched(*paths: Path) -> list[list[FunctionProbe] | errors.BpfleakdError]:
    """The result of a search of files."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in paths]
        return [_searched(str(path), file.fileno()) for path, file in zip(paths, files, strict=True)]


def _searched(name: str, *descriptors: int) -> list[FunctionProbe] | errors.BpfleakdError:
    try:
        return search_file(helpers(), SearchedFile(name, *descriptors), WANTED)
    except errors.BpfleakdError as error:
        return error


def searched_with(program: Path, debug: Path) -> list[FunctionProbe]:
    """The result of a search of a program by the symbols of a debug file."""
    with program.open("rb") as file, debug.open("rb") as symbols:
        return search_file(helpers(), SearchedFile("program", file.fileno(), symbols.fileno()), WANTED)


@pytest.mark.parametrize(("source", "registers"), MOVED.values(), ids=MOVED)
def test_arguments_are_followed_from_register_to_register(
    tmp_path: Path, source: str, registers: tuple[str, ...]
) -> None:
    """A cheap probe point behind the moves is as good as one before them."""
    code, probe = assembled(tmp_path, source)
    assert choose_probe_point(code, release=False, arguments=("rdi", "rsi")) == (probe, True)
    assert argument_registers(code, probe, ("rdi", "rsi")) == registers


@pytest.mark.parametrize("source", LOST.values(), ids=LOST)
def test_an_argument_that_is_lost_ends_the_search(tmp_path: Path, source: str) -> None:
    """At the entry it is where the caller put it."""
    code, _probe = assembled(tmp_path, source)
    assert choose_probe_point(code, release=False, arguments=("rdi",)) == (0, False)
    assert argument_registers(code, 0, ("rdi",)) == ("rdi",)


LIBRARY = """
.macro function name
.globl \\name
.type \\name, @function
\\name:
.endm
.macro end name
.size \\name, . - \\name
.endm

function take
    push %rbx; mov %rdi, %rax; pop %rbx; ret
end take
function take_second
    endbr64; mov %rsi, %rdi; jmp take
end take_second
function take_by_stub
    jmp take@plt
end take_by_stub
function take_by_slot
    jmp *take@GOTPCREL(%rip)
end take_by_slot
function take_more
    shl %rdi; jmp take
end take_more
function take_or_not
    test %rdi, %rdi; je 1f; jmp take; 1: ret
end take_or_not
function take_and_work
    push %rbx; call take@plt; pop %rbx; ret
end take_and_work
function give
    push %rbx; pop %rbx; ret
end give
function give_by_jump
    jmp give
end give_by_jump
function give_by_call
    test %rdi, %rdi; je 1f; sub $8, %rsp; call give@plt; add $8, %rsp; 1: ret
end give_by_call
function give_what_was_taken
    jmp take
end give_what_was_taken
.globl give_too
.set give_too, give
.type give_too, @function
"""


def wanted(name: str, *arguments: str) -> WantedFunction:
    effect = "release" if name.startswith("give") else "size"
    return WantedFunction(name, arguments or ("rdi",), effect, release=effect == "release")


WANTED = [
    *map(wanted, ("take", "take_by_stub", "take_by_slot", "take_more", "take_or_not", "take_and_work")),
    *map(wanted, ("give", "give_by_jump", "give_by_call", "give_too", "give_what_was_taken", "absent")),
    wanted("take_second", "rsi"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FunctionProbe]:
    directory = tmp_path_factory.mktemp("library")
    library = compiled(directory, LIBRARY.replace(";", "\n"), "-shared", "-nostdlib", suffix=".s")
    (probes,) = searched(library)
    assert not isinstance(probes, errors.BpfleakdError)
    return {probe.function: probe for probe in probes}


def test_what_the_file_defines_is_found(found: dict[str, FunctionProbe]) -> None:
    """And nothing else; two names of one function are at one place."""
    assert found.keys() == {function.name for function in WANTED} - {"absent"}
    assert found["give"].offset == found["give_too"].offset
    assert found["give"].entry == found["give_too"].entry


@pytest.mark.parametrize("function", ["take_second", "take_by_stub", "take_by_slot"])
def test_a_function_that_only_jumps_to_another(found: dict[str, FunctionProbe], function: str) -> None:
    """Directly, through a stub or through a slot, with the argument where the other expects it."""
    assert found[function].jumps_to == "take"


@pytest.mark.parametrize(
    "function", ["take", "take_more", "take_or_not", "take_and_work", "give", "give_what_was_taken"]
)
def test_a_function_that_does_more(found: dict[str, FunctionProbe], function: str) -> None:
    """It changes the argument, decides, comes back, or means something else."""
    assert found[function].jumps_to is None


def test_releases_that_call_releases(found: dict[str, FunctionProbe]) -> None:
    """Wherever in their code: one call of the program may be two that are seen."""
    assert found["give_by_jump"].jumps_to in ("give", "give_too")
    assert {name for name in found if found[name].calls_alike and name.startswith("give")} == {
        "give_by_jump",
        "give_by_call",
    }


def test_a_file_that_cannot_be_understood_does_not_hide_another(tmp_path: Path) -> None:
    """Each file has its own answer."""
    broken, foreign = tmp_path / "broken", tmp_path / "foreign"
    broken.write_bytes(b"\x7fELF" + b"\xff" * 100)
    library = compiled(tmp_path, LIBRARY.replace(";", "\n"), "-shared", "-nostdlib", suffix=".s")
    data = bytearray(library.read_bytes())
    data[18] = 183  # e_machine: AArch64
    foreign.write_bytes(data)

    answers = searched(broken, foreign, library)

    assert [type(answer) for answer in answers] == [errors.BadElf, errors.BadElf, list]


def test_a_debug_file_says_what_a_function_is_called_and_not_where_one_begins(tmp_path: Path) -> None:
    """Its symbols count if the program's own call frame information confirms them."""
    source = "static char room[64]; __attribute__((noinline)) static char *take(int n) "
    source += "{ return n < 64 ? room + n : 0; }\nint main(int n, char **v) { return take(n) == 0; }\n"
    program = compiled(tmp_path, source, "-g", "-O1")
    debug, forged = tmp_path / "debug", tmp_path / "forged"
    output_of("objcopy", "--only-keep-debug", program, debug)
    middle = f"take=.text:{nm(program)['take'] + 1 - text_of(program):#x},local,function"
    output_of("objcopy", "--strip-symbol", "take", "--add-symbol", middle, debug, forged)
    output_of("strip", program)

    (honest,), (refused,) = searched_with(program, debug), searched_with(program, forged)
    assert (honest.function, honest.refusal) == ("take", "")
    assert "does not begin" in refused.refusal


def text_of(program: Path) -> int:
    with ElfImage.open(program) as image:
        section = image.section(".text")
        assert section is not None
        return section.vaddr
