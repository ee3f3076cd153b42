"""Targets of jumps through the procedure linkage table, compared with objdump."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.jump_slots import JumpSlots

from .building import compiled, output_of

SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char **words)
{
    void *(*volatile choice)(size_t) = malloc;
    char *copy = strdup(words[0]);
    puts(copy);
    free(copy);
    return choice(count) != NULL;
}
"""


def stubs_of(path: Path) -> dict[int, str]:
    """Address -> function, as objdump names the stubs."""
    rows = re.findall(r"^([0-9a-f]+) <(\w+)@plt>:$", output_of("objdump", "-d", path), re.MULTILINE)
    return {int(address, 16): name for address, name in rows}


@pytest.mark.parametrize(
    "options",
    [
        ["-Wl,-z,lazy"],
        ["-Wl,-z,now"],
        ["-fcf-protection=full", "-Wl,-z,ibtplt", "-Wl,-z,lazy"],
        ["-no-pie"],
        ["-static-libgcc", "-Wl,-z,noseparate-code"],
    ],
    ids=" ".join,
)
def test_every_stub(tmp_path: Path, options: list[str]) -> None:
    """Lazy or not, with and without endbr64, relocated or at a fixed address."""
    path = compiled(tmp_path, SOURCE, *options)
    stubs = stubs_of(path)
    assert {"strdup", "puts", "free"} <= set(stubs.values())
    with ElfImage.open(path) as image:
        slots = JumpSlots(image)
        assert {address: slots.behind_stub(address) for address in stubs} == stubs


def test_the_stubs_of_a_library() -> None:
    """A library calls its own exported functions through stubs, too."""
    path = Path(output_of("gcc", "-print-file-name=libstdc++.so.6").strip())
    stubs = stubs_of(path)
    assert "_ZdlPv" in stubs.values()
    with ElfImage.open(path) as image:
        slots = JumpSlots(image)
        assert {address: slots.behind_stub(address) for address in stubs} == stubs


def test_what_is_no_stub(tmp_path: Path) -> None:
    """Any other code, and addresses outside of the file."""
    path = compiled(tmp_path, SOURCE)
    with ElfImage.open(path) as image:
        slots = JumpSlots(image)
        main = next(int(a, 16) for a in re.findall(r"^(\w+) T main$", output_of("nm", path), re.MULTILINE))
        assert slots.behind_stub(main) is None
        assert slots.behind_stub(0x7FFF_0000_0000) is None
        assert slots.function_of(main) is None


def test_a_static_program_has_none(tmp_path: Path) -> None:
    """Nothing is imported."""
    with ElfImage.open(compiled(tmp_path, SOURCE, "-static")) as image:
        assert JumpSlots(image).function_of(0x4000) is None
