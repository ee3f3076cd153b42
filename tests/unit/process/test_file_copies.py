"""Copies of files in memory, and how many there may be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfleakd.process.files import file_copies
from bpfleakd.process.files.file_copies import copy_of_slow_file, is_slow, sealed_copy


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """Two MiB and a byte, open."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 8192 + b"!")
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_a_copy_has_the_bytes_and_cannot_be_changed(file: int) -> None:
    """Whatever becomes of the file."""
    size_bytes = os.fstat(file).st_size
    copy = copy_of_slow_file(file, size_bytes, "me")
    try:
        assert os.pread(copy, size_bytes + 1, 0) == os.pread(file, size_bytes + 1, 0)
        with pytest.raises(PermissionError):
            os.pwrite(copy, b"x", 0)
    finally:
        os.close(copy)


def test_a_file_that_is_shorter_than_it_said(file: int) -> None:
    """It is rejected, and no descriptor remains."""
    before = os.listdir("/proc/self/fd")
    size_bytes = os.fstat(file).st_size + 1
    with pytest.raises(EOFError):
        sealed_copy("short", file, size_bytes)
    with pytest.raises(OSError, match="being written"):
        copy_of_slow_file(file, size_bytes, "me")
    assert os.listdir("/proc/self/fd") == before


def test_limits_of_a_process_and_of_all(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A duplicate of a copy counts for as long as it is open."""
    monkeypatch.setattr(file_copies, "OWN_BYTES_MAX", 100)
    monkeypatch.setattr(file_copies, "ALL_BYTES_MAX", 250)
    with pytest.raises(OSError, match="too large"):
        copy_of_slow_file(file, 101, "me")
    copies = [copy_of_slow_file(file, 60, "me")]
    with pytest.raises(OSError, match="too much"):
        copy_of_slow_file(file, 60, "me")
    copies += [copy_of_slow_file(file, 60, owner) for owner in ("you", "they", "we")]
    with pytest.raises(OSError, match="too much"):
        copy_of_slow_file(file, 60, "somebody")
    kept = os.dup(copies[0])
    os.close(copies[0])
    with pytest.raises(OSError, match="too much"):
        copy_of_slow_file(file, 60, "me")
    os.close(kept)
    copies[0] = copy_of_slow_file(file, 60, "me")
    for copy in copies:
        os.close(copy)


def test_a_server_that_is_slow_for_ever(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread gives up between two answers."""
    monkeypatch.setattr(file_copies, "COPY_S", -1.0)
    with pytest.raises(TimeoutError):
        copy_of_slow_file(file, 60, "me")


def test_which_file_systems_are_slow(file: int) -> None:
    """Those that are not the kernel's own; memory is, and /proc is not on the list."""
    memory = sealed_copy("memory", file, 60)
    proc = os.open("/proc/version", os.O_RDONLY)
    try:
        assert not is_slow(memory)
        assert is_slow(proc)
    finally:
        os.close(memory)
        os.close(proc)
