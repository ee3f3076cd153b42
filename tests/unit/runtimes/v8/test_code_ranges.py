"""Where V8 has code, by the mappings of Node.js 18 and 20."""

from __future__ import annotations

import pytest

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.runtimes.v8.code import file_of, module_of
from bpfleakd.runtimes.v8.code_ranges import code_ranges

NODE = "/usr/bin/node"


def mapped(start: int, end: int, rights: str, offset: int = 0, path: str = "") -> Mapping:
    inode = 4711 if path else 0
    return Mapping(start, end, offset, "08:01", inode, path, "r" in rights, "w" in rights, "x" in rights)


def test_compiled_code_lies_in_what_is_reserved_around_it() -> None:
    """Pages are executable one by one, and more of them later: the range is all of the adjacent memory."""
    mappings = [
        mapped(0x400000, 0x4FF7000, "rx", 0, NODE),
        mapped(0x51FA000, 0x5215000, "rw", 0x4BFA000, NODE),
        mapped(0x5238000, 0x5240000, ""),
        mapped(0x5243000, 0x5272000, "rx"),
        mapped(0x5272000, 0xD238000, ""),
    ]
    mappings.insert(3, mapped(0x5240000, 0x5243000, "rw"))

    assert code_ranges(mappings, NODE) == [(0x5238000, 0xD238000, False), (0x400000, 0x4FF7000, True)]


def test_a_copy_of_the_builtins_is_a_part_of_it() -> None:
    """Node.js 20 maps them a second time from its file, beside compiled code."""
    mappings = [
        mapped(0xB72000, 0x25FE000, "rx", 0x772000, NODE),
        mapped(0x7F6078003000, 0x7F607803F000, "rwx"),
        mapped(0x7F607803F000, 0x7F6097E40000, ""),
        mapped(0x7F6097E40000, 0x7F6097FD2000, "rx", 0x14C4000, NODE),
        mapped(0x7F6097FD2000, 0x7F6098000000, ""),
    ]

    assert code_ranges(mappings, NODE) == [
        (0x7F6078003000, 0x7F6098000000, False),
        (0xB72000, 0x25FE000, True),
    ]


def test_memory_without_code_is_none() -> None:
    """Heaps and stacks of threads may be large, and code may be beside them."""
    huge = mapped(0x7F0000000000, 0x7F0100000000, "rw")
    code = mapped(0x7F0100000000, 0x7F0100001000, "rx")

    ((start, end, only_gaps),) = code_ranges([mapped(0x1000, 0x2000, "rw"), huge, code], NODE)

    assert (start, end, only_gaps) == (code.start - (512 << 20), code.end, False)


@pytest.mark.parametrize(
    ("script", "module", "file"),
    [
        ("/srv/shop/app.js", "app.js", "app.js"),
        ("file:///srv/shop/app.mjs", "app.mjs", "app.mjs"),
        ("/srv/node_modules/@shop/cart/lib/add.js", "@shop/cart", "add.js"),
        ("/srv/node_modules/a/node_modules/b/index.js", "b", "index.js"),
        ("node:internal/timers", "node", "node:internal/timers"),
    ],
)
def test_what_a_script_is_a_part_of(script: str, module: str, file: str) -> None:
    """The innermost package, Node.js itself, or the program's own file."""
    assert (module_of(script), file_of(script)) == (module, file)
