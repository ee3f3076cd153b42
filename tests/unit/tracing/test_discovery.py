"""From the mappings of a process to the functions to probe: this very process, and files made for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bpfleakd.kernel.probes.points import FunctionProbe, SearchedFile, WantedFunction, search_file
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.probe import FunctionRole
from bpfleakd.process.files import process_code
from bpfleakd.process.files.process_code import open_code
from bpfleakd.process.mappings import read_mappings
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.tracing.attaching.discovery import Discovery
from bpfleakd.tracing.attaching.probed_file import ProbedFile

from ..elf.building import compiled, objcopy, output_of
from ..helping import helpers

PID = os.getpid()

ALLOCATOR = """
.macro define name body
.globl \\name
.type \\name, @function
\\name: \\body
ret
.size \\name, . - \\name
.endm
define malloc "push %rbx"
define calloc "sub $8, %rsp"
.globl free
.type free, @function
free: push %rbx
ret
.size free, . - free
.globl cfree
.type cfree, @function
cfree: jmp free
.size cfree, . - cfree
.globl other_name
.set other_name, malloc
"""


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that helpers search."""
    names: list[str] = []

    def search(
        helpers: Helpers, file: SearchedFile, functions: Sequence[WantedFunction]
    ) -> list[FunctionProbe]:
        names.append(file.name)
        return search_file(helpers, file, functions)

    monkeypatch.setattr("bpfleakd.kernel.probes.point_cache.search_file", search)
    return names


def mapped(path: Path, *, start: int = 0x7000_0000_0000, code: bool = True) -> Mapping:
    """A mapping that this process has not got: the file is then found by its path."""
    status = path.stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    return Mapping(start, start + 0x1000, 0, device, status.st_ino, str(path), True, False, code)


@pytest.fixture
def allocator(tmp_path: Path) -> Path:
    return compiled(tmp_path, ALLOCATOR, "-shared", "-nostdlib", name="allocator.so", suffix=".s")


def names(found: Sequence[ProbedFile]) -> dict[str, set[str]]:
    return {Path(f.functions[0].module).name: {function.function for function in f.functions} for f in found}


def test_this_process_has_a_c_library_a_loader_and_an_interpreter(searches: list[str]) -> None:
    """All its files are checked, and only those with functions to probe are searched."""
    files = Discovery(helpers()).files(open_code(PID, read_mappings(PID)))

    allocators = [file for file in files if file.has_allocator]
    assert {"malloc", "free", "realloc"} <= {f.function for file in allocators for f in file.functions}
    roles = {function.role for file in files for function in file.functions}
    assert {FunctionRole.LIBRARIES_CHANGED, FunctionRole.CODE_RELEASED} <= roles
    assert len(searches) == len(files)


def test_a_known_file_is_not_searched_again(searches: list[str], allocator: Path) -> None:
    """Neither for the same process nor for the next one; a changed file is another one."""
    known = Discovery(helpers())
    (first,) = known.files(open_code(PID, [mapped(allocator)]))
    (second,) = known.files(open_code(PID, [mapped(allocator), mapped(Path(os.__file__))]))
    assert (second.id, second.points) == (first.id, first.points)
    assert len(searches) == 1

    os.utime(allocator, (1, 1))
    known.files(open_code(PID, [mapped(allocator)]))
    assert len(searches) == 2


def test_points_and_what_is_shown_of_them(allocator: Path) -> None:
    """A function that only jumps to another probed one is omitted; each probe point is listed."""
    (file,) = Discovery(helpers()).files(open_code(PID, [mapped(allocator)]))

    assert names([file]) == {"allocator.so": {"malloc", "free", "calloc"}}
    assert [point.offset for point in file.points] == [function.offset for function in file.functions]
    shown = {function.function: function for function in file.functions}
    assert {function.module for function in file.functions} == {str(allocator)}
    assert shown["malloc"].emulated
    assert not shown["calloc"].emulated
    assert shown["malloc"].allocator == "other"


def test_one_file_mapped_twice_and_two_files_with_one_name(allocator: Path, tmp_path: Path) -> None:
    """A file is an inode: probes hold wherever it is mapped, and only there."""
    copy = tmp_path / "copy" / allocator.name
    copy.parent.mkdir()
    copy.write_bytes(allocator.read_bytes())

    files = Discovery(helpers()).files(
        open_code(PID, [mapped(allocator), mapped(allocator, start=0x7100_0000_0000), mapped(copy)])
    )

    assert [os.path.realpath(file.path) for file in files] == [str(allocator), str(copy)]
    assert len({file.id for file in files}) == 2


def test_what_is_followed_already_is_passed_over(allocator: Path) -> None:
    """Its probes are there, also after a new hard link or mode has changed its identity."""
    known = Discovery(helpers())
    (file,) = known.files(open_code(PID, [mapped(allocator)]))
    os.link(allocator, allocator.with_name("backup.so"))
    assert known.files(open_code(PID, [mapped(allocator)]), passed_over=[file.id.inode_key]) == []


def test_only_code_of_files_is_looked_at(allocator: Path) -> None:
    """An allocator that is mapped to be read is not there to be called."""
    assert Discovery(helpers()).files(open_code(PID, [mapped(allocator, code=False)])) == []


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF" + b"\xff" * 8188])
def test_files_that_are_no_elf(allocator: Path, tmp_path: Path, content: bytes) -> None:
    """They are passed over, and the rest is found."""
    junk = tmp_path / "libc.so.6"
    junk.write_bytes(content)
    files = Discovery(helpers()).files(open_code(PID, [mapped(junk), mapped(tmp_path), mapped(allocator)]))
    assert names(files).keys() == {"allocator.so"}


def test_a_file_that_is_gone(allocator: Path) -> None:
    """Deleted between the reading of the mappings and now."""
    mapping = mapped(allocator)
    allocator.unlink()
    assert Discovery(helpers()).files(open_code(PID, [mapping])) == []


@pytest.fixture
def as_program(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Makes a file pass for the program of the process."""

    def pretend(path: Path) -> None:
        status = path.stat()
        monkeypatch.setattr(process_code, "_program_inode", lambda _pid: (status.st_dev, status.st_ino))

    return pretend


def test_a_stripped_program_is_known_by_its_debug_file(
    tmp_path: Path, as_program: Callable[[Path], None]
) -> None:
    """Only the program's own: a library exports what others are to call."""
    # The debug file names a function; the program itself must confirm where it begins.
    described = ALLOCATOR.replace(": \\body", ": .cfi_startproc\n\\body").replace(
        "ret\n.size", "ret\n.cfi_endproc\n.size"
    )
    described = described.replace("free: push", "free: .cfi_startproc\npush").replace(".globl", ".local")
    program = compiled(tmp_path, described, "-shared", "-nostdlib", suffix=".s")
    debug = tmp_path / "program.debug"
    output_of("objcopy", "--only-keep-debug", program, debug)
    objcopy(program, "--strip-all", f"--add-gnu-debuglink={debug}")
    assert Discovery(helpers()).files(open_code(PID, [mapped(program)])) == []

    as_program(program)
    (file,) = Discovery(helpers()).files(open_code(PID, [mapped(program)]))

    assert {"malloc", "free"} <= {function.function for function in file.functions}
