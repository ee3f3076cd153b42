"""The BPF source as one text: the same to the compiler as with its includes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bpfleakd.kernel.compilation.source import bpf_directory, flattened

from ...elf.building import output_of


def preprocessed(source: Path, *options: str | Path) -> str:
    """The output of gcc's preprocessor for a C file, without #line marks."""
    shim = bpf_directory() / "shim"
    includes = [f"-I{directory}" for directory in (shim / "include", shim / "arch/x86/include")]
    return output_of("gcc", "-E", "-P", "-nostdinc", "-xc", *includes, *options, source)


@pytest.mark.parametrize(
    ("option", "program"),
    [
        ("-DATTACH_BY_SESSION", "heap_session"),
        ("-DPLAIN", "heap_exit"),
        ("-DWALK_BY_TAIL_CALLS", "heap_continue"),
        ("-DPID_NAMESPACE_INODE=23", "heap_exit"),
    ],
)
def test_it_is_what_the_preprocessor_reads(tmp_path: Path, option: str, program: str) -> None:
    """The inlined text preprocesses to the same as the files with quoted includes, whatever is defined."""
    flat = tmp_path / "flat.c"
    flat.write_text(flattened(bpf_directory()))

    assert not re.search(r'#\s*include\s+"', flat.read_text())
    expected = preprocessed(bpf_directory() / "bpfleakd.bpf.c", f"-I{bpf_directory()}", option)
    assert f"int {program}(" in expected
    assert preprocessed(flat, option) == expected


def test_messages_name_the_file_and_the_line(tmp_path: Path) -> None:
    """After an include the numbering continues where it stopped, and inside it is that of the included file.
    """
    (tmp_path / "main.c").write_text('one\n#include "middle.h"\nfour\n#include <far.h>\n')
    (tmp_path / "middle.h").write_text('  #  include "inner.h" /* first */\n\nmiddle three\n')
    (tmp_path / "inner.h").write_text("inner one\ninner two")

    text = flattened(tmp_path, "main.c")

    file, number, places = "", 0, {}
    for line in text.splitlines():
        mark = re.fullmatch(r'#line (\d+) "(.*)"', line)
        if mark:
            file, number = mark[2], int(mark[1])
        else:
            places[line] = (file, number)
            number += 1
    del places[""]
    assert places == {
        "one": ("main.c", 1),
        "inner one": ("inner.h", 1),
        "inner two": ("inner.h", 2),
        "middle three": ("middle.h", 3),
        "four": ("main.c", 3),
        "#include <far.h>": ("main.c", 4),
    }


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """A package without one of its headers says which."""
    (tmp_path / "main.c").write_text('#include "absent.h"\n')
    with pytest.raises(FileNotFoundError, match=r"absent\.h"):
        flattened(tmp_path, "main.c")
