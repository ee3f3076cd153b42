"""Mapped files that are made to keep the daemon busy: only their own process waits."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..kernel.daemons import Daemon
from ..kernel.machine import need_tool
from ..kernel.waiting import wait_until
from .bystander import Bystander
from .floods import NOBODY, at_length, attackers, expect_left_alone, work_on

GIB = 1 << 30
_SECTION = struct.Struct("<IIQQQQIIQQ")


def allocator(path: Path) -> bytes:
    """A library that defines malloc."""
    need_tool("gcc")
    command = ["gcc", "-shared", "-nostdlib", "-fPIC", "-x", "c", "-o", path, "-"]
    subprocess.run(command, input=b"void *malloc(unsigned long n) { return (void *)n; }", check=True)
    content = path.read_bytes()
    path.unlink()
    return content


def large_libraries(directory: Path) -> None:
    """Each is sparse, defines malloc, and is as large as a file may be that is copied."""
    content = allocator(directory / "one.so")
    for number in range(40):
        file = directory / f"{number}.so"
        file.write_bytes(content)
        os.truncate(file, 63 << 20)


def endless_names(directory: Path) -> None:
    """Names of functions, a GiB of zeroes in each file."""
    header = (
        b"\x7fELF\2\1\1"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, 4, 3)
    )
    sections = [
        bytes(64),
        _SECTION.pack(1, 11, 2, 0, 4096, 24 << 16, 2, 0, 8, 24),
        _SECTION.pack(9, 3, 2, 0, 4 << 20, GIB, 0, 0, 1, 0),
        _SECTION.pack(17, 3, 0, 0, 320, 32, 0, 0, 1, 0),
    ]
    names = b"\0.dynsym\0.dynstr\0.shstrtab\0"
    for number in range(20):
        file = directory / f"{number}.so"
        file.write_bytes(header + b"".join(sections) + names)
        os.truncate(file, GIB + (8 << 20))


def very_many(directory: Path) -> None:
    """More files than a process has descriptors."""
    content = allocator(directory / "one.so")
    for number in range(4_000):
        (directory / f"{number}.so").write_bytes(content)


def no_files(directory: Path) -> None:
    """Nothing that could be read."""
    for number in range(500):
        (directory / f"{number}.so").write_bytes(b"\x7fELF" + os.urandom(2_000))


LONG_KINDS = (large_libraries, endless_names, very_many)


@pytest.mark.parametrize("make", [no_files, *(pytest.param(kind, marks=at_length) for kind in LONG_KINDS)])
def test_files_that_take_long_to_read(
    make: Callable[[Path], None],
    flood: Path,
    public_directory: Path,
    tracer: Daemon,
    bystander: Bystander,
):
    """The process is traced or refused in the end; no other process is delayed."""
    files = public_directory / "files"
    files.mkdir()
    make(files)
    for file in files.iterdir():
        os.chown(file, NOBODY, NOBODY)
    with expect_left_alone(bystander), attackers(flood, "files", files) as (pid,):
        wait_until(lambda: is_settled(tracer, pid), 60)
        work_on(bystander)


def is_settled(tracer: Daemon, pid: int) -> bool:
    """Whether the daemon has made up its mind about a process."""
    row = tracer.supervised(pid)
    return row is not None and row["state"] in ("traced", "refused")
