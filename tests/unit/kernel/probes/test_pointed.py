"""Functions found by a pointer in an object, in files that are linked in all ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.elf.image import ElfImage
from bpfleakd.kernel.probes.pointed import pointed_functions

from ...elf.building import compiled, nm, objcopy, output_of

NAME = "PyCode_Type.tp_dealloc"
# A type has its deallocator behind six words.
SOURCE = """
struct type { long head[6]; void (*dealloc)(void *); };
static __attribute__((noinline)) void released(void *object) { __asm__ volatile("" : : "r"(object)); }
struct type PyCode_Type = {{1}, released};
void call(struct type *type, void *object) { type->dealloc(object); }
int main(void) { call(&PyCode_Type, 0); return 0; }
"""
# What a compiler makes of call() if a profile says which function it mostly calls.
PROMOTED = SOURCE.replace(
    "type->dealloc(object);", "if (type->dealloc == released) released(object); else type->dealloc(object);"
)
LINKED = {
    "at fixed addresses": ("-no-pie", "-fno-pie"),
    "position independent": ("-pie", "-fPIE"),
    "a library": ("-shared", "-fPIC"),
    "packed relocations": ("-pie", "-fPIE", "-Wl,-z,pack-relative-relocs"),
}
OPTIONS = ("-O1", "-rdynamic")


def found(path: Path) -> dict[str, int]:
    with ElfImage.open(path) as image:
        return pointed_functions(image, {NAME, "malloc"})


@pytest.mark.parametrize("way", LINKED)
def test_it_needs_no_symbol(way: str, tmp_path: Path) -> None:
    path = compiled(tmp_path, SOURCE, *OPTIONS, *LINKED[way])
    expected = {NAME: nm(path)["released"]}
    assert found(path) == expected
    objcopy(path, "--strip-all")
    assert "released" not in output_of("nm", "-D", path)
    assert found(path) == expected


@pytest.mark.parametrize("way", LINKED)
def test_not_if_code_compares_the_pointer_with_it(way: str, tmp_path: Path) -> None:
    """The call in that case may be a copy of the function."""
    assert found(compiled(tmp_path, PROMOTED, *OPTIONS, *LINKED[way])) == {}


def test_no_such_object(tmp_path: Path) -> None:
    assert found(compiled(tmp_path, SOURCE.replace("PyCode_Type", "other"), *OPTIONS)) == {}


def test_what_leads_to_no_code(tmp_path: Path) -> None:
    """A free-threaded build has a longer head: a size is in the pointer's place."""
    longer = SOURCE.replace("head[6]", "head[8]").replace(
        "{{1}, released}", "{{1, 0, 0, 0, 0, 0, 208}, released}"
    )
    assert found(compiled(tmp_path, longer, *OPTIONS)) == {}
