"""Which mapped files hold an allocator that is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bpfleakd.model import FunctionRole, Mapping
from bpfleakd.target.allocators import ALLOCATORS, DYNAMIC_LOADER, allocators_in, loader_in
from bpfleakd.target.mappings import read_mappings

from ..elf.building import nm

LIB = "/usr/lib/x86_64-linux-gnu/"


def mapped(
    path: str, *, inode: int = 23, start: int = 0x1000, code: bool = True, deleted: bool = False
) -> Mapping:
    return Mapping(start, start + 0x1000, 0, "fe:01", inode, path, True, False, code, deleted)


def files(*mappings: Mapping) -> list[str]:
    return [mapping.path for _allocator, mapping in allocators_in(mappings)]


@pytest.mark.parametrize("name", ["libc.so.6", "libc-2.31.so", "libc-2.5.so", "libc.so"])
def test_c_libraries(name: str) -> None:
    """glibc under the names that it had over the years."""
    ((allocator, mapping),) = allocators_in([mapped(LIB + name)])
    assert (allocator.name, mapping.path) == ("glibc", LIB + name)


@pytest.mark.parametrize(
    "path",
    [
        LIB + "libcrypto.so.3",
        LIB + "libcap.so.2",
        LIB + "libc++.so.1",
        LIB + "libc-client.so.2007e",
        LIB + "libc.so.6.debug",
        LIB + "notlibc.so.6",
        LIB + "libc.so.6/other",
        LIB + "libcXso.6",
        "[heap]",
        "",
    ],
)
def test_files_that_are_none(path: str) -> None:
    """A name has to match as a whole."""
    assert files(mapped(path)) == []


def test_only_code_of_files_counts() -> None:
    """Data, and memory that merely has such a name, are not probed."""
    assert files(mapped(LIB + "libc.so.6", code=False), mapped(LIB + "libc.so.6", inode=0)) == []


def test_a_file_is_found_once() -> None:
    """A file mapped in several pieces, or twice by dlmopen, is one: its probes hold wherever it is mapped."""
    code = [mapped(LIB + "libc.so.6", start=start) for start in (0x5000, 0x1000, 0x9000)]
    ((_allocator, mapping),) = allocators_in([mapped(LIB + "libc.so.6", code=False), *code])
    assert mapping == code[0]


def test_two_c_libraries() -> None:
    """Two files are two, even with one path: the one was replaced while the program ran."""
    old, new = mapped(LIB + "libc.so.6", inode=23, deleted=True), mapped(LIB + "libc.so.6", inode=24)
    assert [mapping for _allocator, mapping in allocators_in([old, new])] == [old, new]


def test_a_deleted_library() -> None:
    """An upgrade of the package deletes the file that is running: it can be probed all the same."""
    assert files(mapped(LIB + "libc.so.6", deleted=True)) == [LIB + "libc.so.6"]


@pytest.mark.parametrize("name", ["ld-linux-x86-64.so.2", "ld-2.31.so", "ld-musl-x86_64.so.1"])
def test_dynamic_loaders(name: str) -> None:
    """The loader is found by its own names, and is no allocator."""
    ((loader, mapping),) = loader_in([mapped(LIB + "libc.so.6"), mapped(LIB + name, inode=24)])
    assert (loader, mapping.path) == (DYNAMIC_LOADER, LIB + name)
    assert files(mapped(LIB + name)) == []


@pytest.mark.parametrize("name", ["ld.so.cache", "ld", "libld-2.31.so", "ld-linux-aarch64.so.1"])
def test_files_that_are_no_loader(name: str) -> None:
    """Only this machine's loaders count."""
    assert loader_in([mapped(LIB + name)]) == ()


def test_functions_are_named_once_and_have_a_release() -> None:
    """Of every allocator something gives memory out, something takes it back, and both are required."""
    for allocator in ALLOCATORS:
        names = [function.name for function in allocator.functions]
        assert len(names) == len(set(names))
        required = {function.role for function in allocator.functions if function.required}
        assert FunctionRole.RELEASE in required
        assert required - {FunctionRole.RELEASE, FunctionRole.LIBRARIES_CHANGED}


def test_this_machine() -> None:
    """This very process has one C library and one loader, which define what is required of them."""
    mappings = read_mappings(os.getpid())
    for found in (allocators_in(mappings), loader_in(mappings)):
        ((allocator, mapping),) = found
        defined = nm(Path(mapping.path), "-D")
        assert {function.name for function in allocator.functions if function.required} <= defined.keys()
