"""What is read of a process' code, with this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bpfleakd import errors
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import instance_of
from bpfleakd.tracing.attaching import process_code
from bpfleakd.tracing.attaching.process_code import ProcessCodeReader, open_code

PID = os.getpid()


def test_each_file_is_opened_once() -> None:
    """All executable mappings of a file lead to the same open file; the program is known as such."""
    code = ProcessCodeReader().code_of(PID, 10.0)
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
        ProcessCodeReader().code_of(0x7FFF_FFFF)
