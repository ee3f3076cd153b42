"""Symbols by name, against nm."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.named_symbols import NamedSymbol, find_symbols

from .building import compiled, output_of

SOURCE = """
int stock[23] = {1};
static long hidden_stock = 7;
int other_stock;
extern int elsewhere;
int *take(void) { return hidden_stock ? stock : &other_stock; }
int main(void) { return *take(); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("symbols"), SOURCE, "-rdynamic")


def test_variables_and_functions(program: Path) -> None:
    """Also one whose name is the end of another name."""
    lines = [line.split() for line in output_of("nm", "-S", program).splitlines()]
    expected = {
        fields[-1]: NamedSymbol(int(fields[0], 16), int(fields[1], 16))
        for fields in lines
        if len(fields) == 4
    }
    names = ["stock", "hidden_stock", "other_stock", "take"]
    with ElfImage.open(program) as image:
        assert find_symbols(image, names) == {name: expected[name] for name in names}


def test_what_is_not_defined_is_not_found(program: Path) -> None:
    """Neither imported nor absent ones."""
    with ElfImage.open(program) as image:
        assert find_symbols(image, ["__libc_start_main", "tock", "nothing"]) == {}


def test_a_stripped_file_has_what_it_exports(program: Path, tmp_path: Path) -> None:
    """By its dynamic symbols."""
    stripped = tmp_path / "stripped"
    output_of("strip", "-o", stripped, program)
    with ElfImage.open(stripped) as image:
        assert find_symbols(image, ["stock", "hidden_stock"]).keys() == {"stock"}
