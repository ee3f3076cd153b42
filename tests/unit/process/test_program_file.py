"""Which file a process executes."""

from __future__ import annotations

import os

import pytest

from bpfleakd.process.files.process_code import program_of


def test_it_is_what_stat_says() -> None:
    """Device and inode."""
    status = os.stat("/proc/self/exe")
    assert program_of(os.getpid()) == (status.st_dev, status.st_ino)


def test_a_process_that_is_gone() -> None:
    """It has no such file."""
    with pytest.raises(FileNotFoundError):
        program_of(1 << 30)
