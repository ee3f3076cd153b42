"""Whether a file defines one of some functions: nm is the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.elf import definitions
from bpfleakd.elf.definitions import defines_any
from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf

from .building import assembled, compiled, nm, objcopy

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


def defines(path: Path, *names: str) -> bool:
    with ElfImage.open(path) as image:
        return defines_any(image, names)


def function(name: str, scope: str = ".globl") -> str:
    return f"{scope} {name}\n.type {name}, @function\n{name}: ret\n.size {name}, 1\n"


def test_every_function_of_libc() -> None:
    """All functions that nm finds are found, whatever their version."""
    names = list(nm(LIBC, "-D", "--defined-only"))
    assert len(names) > 1000
    assert all(defines(LIBC, name) for name in names[::97])
    assert not defines(LIBC, "mallo", "allocate", "malloc2")


def test_what_is_only_imported_is_not_defined(tmp_path: Path) -> None:
    """The name is there, and its symbol says that it is elsewhere."""
    source = "#include <stdlib.h>\nvoid *volatile p;\nint main(void) { p = malloc(23); free(p); return 0; }\n"
    program = compiled(tmp_path, source)
    assert not defines(program, "malloc", "free")
    assert defines(program, "main")


@pytest.mark.parametrize("scope", [".globl", ".weak", ".local"])
def test_any_scope(tmp_path: Path, scope: str) -> None:
    """A program's own allocator need not be exported."""
    assert defines(assembled(tmp_path, function("malloc", scope)), "malloc")


def test_data_is_no_function(tmp_path: Path) -> None:
    """A variable may have the name of a function."""
    source = ".data\n.globl malloc\n.type malloc, @object\nmalloc: .quad 0\n.size malloc, 8\n"
    assert not defines(assembled(tmp_path, source), "malloc")


def test_names_at_the_end_of_others(tmp_path: Path) -> None:
    """Linkers store malloc as the end of je_malloc: the longer one does not stand for the shorter."""
    path = assembled(tmp_path, function("je_malloc"))
    assert defines(path, "je_malloc")
    assert defines(path, "malloc", "je_malloc")
    assert not defines(path, "malloc")
    assert not defines(path, "e_malloc", "xje_malloc")


def test_only_the_symbol_table_has_it(tmp_path: Path) -> None:
    """Without .symtab the hidden function is gone."""
    path = assembled(tmp_path, function("malloc", ".local"))
    assert defines(path, "malloc")
    objcopy(path, "--strip-all")
    assert not defines(path, "malloc")


def test_names_across_the_pieces_that_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is found wherever the pieces of the string table end."""
    path = assembled(tmp_path, "".join(function(f"f{i:03}") for i in range(100)) + function("malloc"))
    for chunk_bytes in range(8, 20):
        monkeypatch.setattr(definitions, "_CHUNK_BYTES", chunk_bytes)
        assert defines(path, "malloc", "absent")
        assert not defines(path, "absent")


def test_a_file_without_symbols(tmp_path: Path) -> None:
    """No section of that name: nothing is defined."""
    path = objcopy(compiled(tmp_path, "int main(void) { return 0; }", "-static"), "--strip-all")
    assert not defines(path, "main", "malloc")


def test_a_file_cut_short(tmp_path: Path) -> None:
    """Whatever is missing, it is an error of ours."""
    whole = assembled(tmp_path, function("malloc")).read_bytes()
    outcomes = set()
    for size in range(64, len(whole), 61):
        try:
            with ElfImage.from_bytes(whole[:size], "cut") as image:
                outcomes.add(defines_any(image, ["malloc"]))
        except BadElf:
            outcomes.add(None)
    assert None in outcomes
