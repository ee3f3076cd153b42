"""What is read of a process' code, with this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bpfleakd import errors
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.process import ProcessId
from bpfleakd.process.files import process_code
from bpfleakd.process.files.mapped_files import OpenedFile
from bpfleakd.process.files.process_code import open_code
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import instance_of, read_process
from bpfleakd.tracing.attaching.code_reader import ProcessCodeReader

PID = os.getpid()


def test_each_file_is_opened_once() -> None:
    """All executable mappings of a file lead to the same open file; the program is known as such."""
    code = ProcessCodeReader().code_of(read_process(PID).id, 10.0)
    assert (code.pid, code.owner) == (PID, instance_of(PID))
    files = [file for mapping in code.mappings if (file := code.file_of(mapping))]
    assert {id(file) for file in files} == {id(file) for file in code.files.values()}
    assert all(file.file.key.inode == file.mapping.inode for file in files)
    (program,) = (file for file in code.files.values() if file.is_program)
    assert program.file.key.inode == Path(sys.executable).stat().st_ino


def test_data_is_not_opened() -> None:
    """Mappings for reading are not code; the vdso has no file."""
    code = open_code(PID, read_mappings(PID))
    others = [mapping for mapping in code.mappings if not mapping.executable or not mapping.inode]
    assert others
    assert {code.file_of(mapping) for mapping in others} == {None}


def test_files_are_open_as_long_as_the_code_is_kept() -> None:
    """Nothing has to be closed."""
    before = len(os.listdir("/proc/self/fd"))
    code = open_code(PID, read_mappings(PID))
    assert len(os.listdir("/proc/self/fd")) == before + len(code.files)
    del code
    assert len(os.listdir("/proc/self/fd")) == before


def test_too_many_files(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first ones are opened, and the omission is reported."""
    monkeypatch.setattr(process_code, "_FILES_MAX", 2)
    assert len(open_code(PID, read_mappings(PID)).files) == 2
    assert "too many files" in capsys.readouterr().out


def test_a_process_that_does_not_exist() -> None:
    """It has no code."""
    with pytest.raises(errors.NoSuchProcess):
        ProcessCodeReader().code_of(ProcessId(0x7FFF_FFFF, 1))


def test_a_pid_that_is_used_again() -> None:
    """The code of another process is not taken for that of the one that had its pid before."""
    id_ = read_process(PID).id
    with pytest.raises(errors.NoSuchProcess, match="reused"):
        ProcessCodeReader().code_of(ProcessId(PID, id_.start_ticks - 1))


def test_a_program_that_maps_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program itself is opened however late it comes; what cannot be opened is known to be missing."""
    monkeypatch.setattr(process_code, "_FILES_MAX", 1)
    program = open_code(PID, reversed(read_mappings(PID))).program
    assert program is not None
    assert program.file.key.inode == Path(sys.executable).stat().st_ino

    def refuse(_pid: int, mapping: Mapping, _owner: str) -> OpenedFile:
        raise PermissionError(13, "refused", mapping.path)

    monkeypatch.setattr(process_code, "open_mapped", refuse)
    code = open_code(PID, read_mappings(PID))
    assert code.program is None
    assert code.lacks_program
