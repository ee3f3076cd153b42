"""Classes read from vtables, in a program that makes them, and in one that makes them up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from bpfleakd import errors
from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.vtable_symbols import vtable_classes
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.symbols.cxx.rtti import ClassReader, FoundClass

from ...elf.building import compiled

# Prints address and size of blocks, then waits. Those that are made up imitate an object.
_SOURCE = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
struct Base { virtual ~Base() {} long a; };
struct Other { virtual void f() {} long b; };
struct Both : Base, Other { long c; };
static void show(void *block, size_t size) { printf("%lu %zu\n", (unsigned long)block, size); }
template <class T> static T *made(T *object) { show(object, sizeof(T)); return object; }
int main() {
    made(new Both);
    Base *array = new Base[5];
    show((char *)array - 8, 8 + 5 * sizeof(Base));
    void **words = (void **)calloc(8, 8);
    Both *both = new Both;
    // The second vtable alone: what an earlier object has left.
    words[2] = ((void **)both)[2];
    show(words, 64);
    // A copy of a vtable in the heap, of a program that makes its own.
    void **table = (void **)calloc(8, 8), **copy = (void **)calloc(8, 8);
    memcpy(table, *(void ***)both - 2, 32);
    copy[0] = table + 2;
    show(copy, 64);
    // A constant that is no vtable, a function, an odd address, the end of the address space.
    void **constants = (void **)calloc(8, 8);
    constants[0] = (void *)"a text that is long enough";
    constants[1] = (void *)&main;
    constants[2] = (char *)*(void **)both + 1;
    constants[3] = (void *)-1;
    constants[4] = (void *)-8;
    show(constants, 64);
    // A block that ends in memory that is not there, and one that is not there at all.
    char *pages = (char *)mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(pages + 4096, 4096);
    memcpy(pages + 4096 - 8, both, 8);
    show(pages + 4096 - 8, 64);
    show(pages + 8192, 64);
    show(new char[3], 3);
    puts("end");
    fflush(stdout);
    getchar();
}
"""


@pytest.fixture(scope="module", params=[(), ("-s", "-no-pie"), ("-static",)], ids=["pie", "no-pie", "static"])
def program(request, tmp_path_factory) -> Iterator[tuple[int, np.ndarray]]:
    """The pid, and the blocks: n x 2, address and size."""
    directory: Path = tmp_path_factory.mktemp("rtti")
    path = compiled(directory, _SOURCE, "-O1", *request.param, suffix=".cpp")
    process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    rows = []
    while (line := process.stdout.readline()) != "end\n":
        rows.append([int(number) for number in line.split()])
    yield process.pid, np.array(rows, np.uint64)
    process.communicate("\n")


def test_objects_are_told_from_what_looks_like_them(program):
    """The class of an object and of an array; none of all that is made up, also where memory is missing."""
    pid, blocks = program
    reader = ClassReader()
    reader.use(read_mappings(pid))
    with RemoteMemory(pid) as memory:
        for _again in range(2):
            found = reader.read(pid, memory, blocks[:, 0], blocks[:, 1])
            assert found[:2] == [FoundClass("4Both", 0, False), FoundClass("4Base", 8, True)]
            assert found[2:5] == [None] * 3
            assert found[5] == FoundClass("4Both", 0, False)
            assert found[6:] == [None, None]


def test_without_mappings_nothing_is_believed(program):
    """Nor after the modules are gone."""
    pid, blocks = program
    reader = ClassReader()
    with RemoteMemory(pid) as memory:
        assert reader.read(pid, memory, blocks[:, 0], blocks[:, 1]) == [None] * len(blocks)
        reader.use(read_mappings(pid))
        reader.read(pid, memory, blocks[:, 0], blocks[:, 1])
        reader.use(())
        assert reader.read(pid, memory, blocks[:, 0], blocks[:, 1]) == [None] * len(blocks)


def test_a_process_that_has_ended():
    """Is said to have."""
    with RemoteMemory(os.getpid()) as memory, pytest.raises(errors.NoSuchProcess):
        ClassReader().read(1 << 22, memory, np.array([4096], np.uint64), np.array([64], np.uint64))


@pytest.mark.parametrize("flags", [(), ("-s",)], ids=["symbols", "stripped"])
def test_vtables_without_type_information(flags, tmp_path):
    """The symbols of vtables name the classes; without symbols nothing is named, and nothing is mistaken for
    a vtable.
    """
    path = compiled(tmp_path, _SOURCE, "-O1", "-fno-rtti", *flags, suffix=".cpp")
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        rows = []
        while (line := process.stdout.readline()) != "end\n":
            rows.append([int(number) for number in line.split()])
        blocks = np.array(rows, np.uint64)

        def names(mapping: Mapping, offsets: Sequence[int]) -> dict[int, str]:
            with open(mapping.path, "rb") as file, ElfImage.open(file.fileno()) as image:
                vaddrs = {image.vaddr_of(offset) or 0: offset for offset in offsets}
                return {vaddrs[vaddr]: name for vaddr, name in vtable_classes(image, list(vaddrs)).items()}

        reader = ClassReader(names)
        with RemoteMemory(process.pid) as memory:
            reader.use(read_mappings(process.pid))
            found = reader.read(process.pid, memory, blocks[:, 0], blocks[:, 1])
        process.communicate("\n")
    both, base = FoundClass("4Both", 0, False), FoundClass("4Base", 8, True)
    expected = [both, base, None, None, None, both, None, None]
    assert found == ([None] * len(expected) if flags else expected)
