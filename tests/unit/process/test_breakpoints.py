"""Breakpoints are compared with the file's instructions, in a process whose memory is a file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.probe import FunctionRole, ProbedFunction
from bpfleakd.process.breakpoints import OpenFile, changed_code, missing_breakpoints

from ..symbols.opening import open_file

PID = 23
START = 0x4000
OFFSETS = (0x10, 0x20)
CODE = bytes(range(1, 0x41))


def probe(offset: int) -> ProbedFunction:
    return ProbedFunction("libc", f"at_{offset:x}", FunctionRole.RELEASE, "/lib/libc.so", offset, True)


MAPPING = Mapping(START, START + 0x1000, 0, "08:01", 7, "/lib/libc.so", True, False, True)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process that maps a library at START, with breakpoints at all of OFFSETS."""
    library = tmp_path / str(PID) / "root/lib/libc.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(CODE)
    memory = bytearray(CODE)
    for offset in OFFSETS:
        memory[offset] = 0xCC
    write_memory(tmp_path, memory)
    return tmp_path


def opener(proc: Path) -> OpenFile:
    """Opens files below the root of the process."""
    return lambda pid, mapping, owner: open_file(proc / str(pid) / "root" / mapping.path[1:], owner)


def write_memory(proc: Path, code: bytes) -> None:
    (proc / str(PID) / "mem").write_bytes(bytes(START) + code.ljust(4096, b"\0"))


def test_breakpoints_that_are_there_are_not_missing(proc):
    """Each has taken the place of an instruction."""
    assert missing_breakpoints(PID, map(probe, OFFSETS), [MAPPING], proc, opener(proc)) == []


def test_an_instruction_of_the_file_is_a_missing_breakpoint(proc):
    """Only that one is named."""
    memory = bytearray(CODE)
    memory[OFFSETS[0]] = 0xCC
    write_memory(proc, memory)
    assert missing_breakpoints(PID, map(probe, OFFSETS), [MAPPING], proc, opener(proc)) == [probe(OFFSETS[1])]


def test_what_cannot_be_told_is_not_missing(proc):
    """A library that is not mapped any more, a process that has ended, a file that is gone."""
    write_memory(proc, CODE)
    assert missing_breakpoints(PID, map(probe, OFFSETS), [], proc, opener(proc)) == []
    assert missing_breakpoints(PID + 1, map(probe, OFFSETS), [MAPPING], proc, opener(proc)) == []
    (proc / str(PID) / "root/lib/libc.so").unlink()
    assert missing_breakpoints(PID, map(probe, OFFSETS), [MAPPING], proc, opener(proc)) == []


def changed(
    proc: Path, code: bytes, file_code: bytes = CODE, points: Iterable[tuple[int, int]] = ()
) -> list[int]:
    """The changed points of (function, instruction), in a process that executes `code`."""
    write_memory(proc, code)
    library = proc / str(PID) / "root/lib/libc.so"
    library.write_bytes(file_code)
    descriptor = os.open(library, os.O_RDONLY)
    try:
        return changed_code(PID, descriptor, points or [(OFFSETS[0] - 4, OFFSETS[0])], [MAPPING], proc)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("at", [-4, -1, 0, 14])
def test_a_function_that_begins_with_a_hook_is_changed(proc, at):
    """Anywhere up to the end of the instruction, which may be part of the hook."""
    code = bytearray(CODE)
    code[OFFSETS[0] + at] = 0xE9
    assert changed(proc, code) == [OFFSETS[0]]


@pytest.mark.parametrize("at", [-5, 15])
def test_code_around_it_may_be_changed(proc, at):
    """It belongs to other functions, or follows the instruction."""
    code = bytearray(CODE)
    code[OFFSETS[0] + at] = 0xE9
    assert changed(proc, code) == []


def test_probes_of_others_are_no_change(proc):
    """A breakpoint, and a call that the kernel puts into the place of five bytes that do nothing."""
    file_code = bytearray(CODE)
    file_code[OFFSETS[0] : OFFSETS[0] + 5] = bytes.fromhex("0f1f440000")
    code = bytearray(file_code)
    code[OFFSETS[0] - 4] = 0xCC
    code[OFFSETS[0] : OFFSETS[0] + 5] = bytes.fromhex("e811223344")
    assert changed(proc, code, file_code) == []


def test_what_cannot_be_read_is_not_changed(proc):
    """The kernel finds out; the other points are compared."""
    code = bytearray(CODE)
    code[OFFSETS[0]] = 0xE9
    beyond = 0x800000
    assert changed(proc, code, points=[(beyond, beyond), (OFFSETS[0], OFFSETS[0])]) == [OFFSETS[0]]
    assert changed_code(PID + 1, 0, [(1, 1)], [MAPPING], proc) == []
