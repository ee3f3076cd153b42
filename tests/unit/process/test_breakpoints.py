"""Breakpoints are compared with the file's instructions, in a process whose memory is a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.probe import FunctionRole, ProbedFunction
from bpfleakd.process.breakpoints import OpenFile, missing_breakpoints

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
