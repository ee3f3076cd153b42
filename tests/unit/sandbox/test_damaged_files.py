"""Damaged files in the daemon's own helpers: each is answered or refused, and the next one is served."""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.errors import BadElf
from bpfleakd.kernel.probes.points import SearchedFile, WantedFunction, search_file
from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.symbols.naming_jobs import DEMANGLE_JOB, NAMES_JOB, Demangled, NamedAddress
from bpfleakd.unwind.table_builder import TableBuilder

from ..elf.building import compiled
from ..helping import helpers

SOURCE = """
#include <stdlib.h>
static inline int twice(int n) { return 2 * n; }
__attribute__((noipa)) void *allocate(int n) { return malloc(twice(n)); }
int main(int n, char **v) { (void)v; free(allocate(n)); return twice(n); }
"""
WANTED = [WantedFunction(name, ("rdi",), name, release=name == "main") for name in ("allocate", "main")]


@cache
def program() -> bytes:
    """A program with symbols, DWARF and call frame information."""
    with tempfile.TemporaryDirectory() as directory:
        return compiled(Path(directory), SOURCE, "-g", "-O1").read_bytes()


DAMAGES = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6
)


def damaged(damages: list[tuple[int, bytes]], length: int) -> int:
    """A descriptor of the program with some bytes changed, and cut."""
    content = bytearray(program())
    for place, data in damages:
        # Half of the damage is in the headers, which all the rest hangs on.
        place %= len(content) if place & 1 else 64
        content[place : place + len(data)] = data
    file = os.memfd_create("damaged", os.MFD_CLOEXEC)
    os.write(file, content[: max(1, len(content) - length)])
    return file


@settings(max_examples=25)
@given(DAMAGES, st.sampled_from([0, 0, 0, 1, 4_000]), st.lists(st.integers(0, 1 << 40), max_size=20))
def test_damaged_programs(damages: list[tuple[int, bytes]], length: int, addresses: list[int]):
    """Names, probe points and unwind tables of them."""
    file = damaged(damages, length)
    places: Any = [(vaddr & 0xFFFF if vaddr & 1 else vaddr, vaddr) for vaddr in addresses]
    try:
        with contextlib.suppress(HelperFailed):
            for named in helpers().answers(
                NAMES_JOB, (places, True), [file], NamedAddress, limit_s=10, answers_max=20
            ):
                assert named.symbol is None or named.symbol.isprintable()
        with contextlib.suppress(BadElf, HelperFailed):
            for probe in search_file(helpers(), SearchedFile("damaged", file), WANTED):
                assert probe.function in ("allocate", "main")
        with contextlib.suppress(HelperFailed):
            built = TableBuilder(helpers()).table_of(file, is_stable=True)
            assert (built.table is None) == bool(built.failure)
    finally:
        os.close(file)


@settings(max_examples=25)
@given(st.lists(st.text("_ZNSt4pairI3fooiEvRKPx0123456789ESaIc", max_size=60), max_size=20))
def test_names_of_any_kind(names: list[str]):
    """Each has an answer, or its helper ends; the next is served."""
    mangled = [f"_Z{name}" for name in names]
    ask = partial(
        helpers().answers, DEMANGLE_JOB, files=[], answer_type=Demangled, limit_s=10, answers_max=20
    )
    with contextlib.suppress(HelperFailed):
        assert len(list(ask(arguments=mangled))) == len(mangled)
    assert [one.text for one in ask(arguments=["_ZN3foo3barEv"])] == ["foo::bar()"]
