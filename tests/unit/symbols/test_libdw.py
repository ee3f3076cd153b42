"""Lines and inlined functions by libdw."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.symbols import SymbolTable
from bpfleakd.symbols.libdw import DwarfLines

# As rustc and clang write it, and gcc never does: a function inside a namespace's entry. `handle` begins at
# 0x1000; in the block from its 2nd byte on, `helper` was inlined from its 4th to its 11th.
SOURCE = """
        .file 1 "shop.rs"
        .text
begin:  .loc 1 29
        nop; nop
block:  .loc 1 30
        nop; nop
inside: .loc 1 7
        nop; nop; nop; nop; nop; nop; nop; nop
after:  .loc 1 31
        nop; nop
end:
        .section .debug_abbrev,"",@progbits
        .uleb128 1, 0x11; .byte 1; .uleb128 0x10,0x17, 0x11,1, 0x12,7, 0,0
        .uleb128 2, 0x39; .byte 1; .uleb128 3,8, 0,0
        .uleb128 3, 0x2e; .byte 0; .uleb128 3,8, 0x20,0xb, 0,0
        .uleb128 4, 0x2e; .byte 1; .uleb128 3,8, 0x11,1, 0x12,7, 0,0
        .uleb128 5, 0x0b; .byte 1; .uleb128 0x11,1, 0x12,7, 0,0
        .uleb128 6, 0x1d; .byte 0; .uleb128 0x31,0x13, 0x11,1, 0x12,7, 0x58,0xb, 0x59,0xb, 0,0
        .byte 0
        .section .debug_info,"",@progbits
info:   .long info_end - info - 4; .short 4; .long 0; .byte 8
        .uleb128 1; .long lines; .quad begin, end - begin
        .uleb128 2; .asciz "shop"
helper: .uleb128 3; .asciz "helper"; .byte 1
        .uleb128 4; .asciz "handle"; .quad begin, end - begin
        .uleb128 5; .quad block, end - block
        .uleb128 6; .long helper - info; .quad inside, after - inside; .byte 1, 30
        .byte 0, 0, 0, 0
info_end:
        .section .debug_line,"",@progbits
lines:
"""


@pytest.fixture(scope="module")
def namespaced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with the function above at 0x1000."""
    library: Path = tmp_path_factory.mktemp("dwarf") / "libshop.so"
    command = ["gcc", "-shared", "-nostdlib", "-Wl,-Ttext=0x1000", "-x", "assembler", "-", "-o", library]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return library


@pytest.mark.parametrize(
    ("vaddr", "expected"),
    [
        (0x1000, [("handle", "shop.rs:29")]),
        (0x1003, [("handle", "shop.rs:30")]),
        (0x1004, [("helper", "shop.rs:7"), ("handle", "shop.rs:30")]),
        (0x100B, [("helper", "shop.rs:7"), ("handle", "shop.rs:30")]),
        (0x100C, [("handle", "shop.rs:31")]),
        (0x2000, []),
    ],
)
def test_a_function_in_a_namespace(namespaced: Path, vaddr: int, expected: list[tuple[str, str]]) -> None:
    """With its inlined functions, and its own line instead of theirs."""
    with namespaced.open("rb") as file:
        lines = DwarfLines(file.fileno())
        assert lines.frames_at(vaddr) == expected
        lines.close()


LAMBDA_SOURCE = """
namespace shop {
template <class F> struct Task {
    F work;
    void *run() { return work(); }
};
__attribute__((noinline)) void *order(void *(*allocate)(int)) {
    auto work = [=] { return (char *)allocate(23) + 1; };
    return Task<decltype(work)>{work}.run();
}
}
void *order(void *(*allocate)(int)) { return shop::order(allocate); }
"""

SHOP_ORDER = "_ZN4shop5orderEPFPviE"


def test_functions_without_a_linkers_name(tmp_path: Path) -> None:
    """What has the type of a lambda is named with its namespace and class: gcc writes no linker's name."""
    library = tmp_path / "liblambda.so"
    command = ["g++", "-std=c++17", "-O2", "-g", "-shared", "-fPIC", "-x", "c++", "-", "-o", library]
    subprocess.run(command, input=LAMBDA_SOURCE, text=True, check=True)
    with library.open("rb") as file:
        with ElfImage.open(file.fileno()) as image:
            at = SymbolTable([image]).addresses_of([SHOP_ORDER])[SHOP_ORDER]
        lines = DwarfLines(file.fileno())
        names = {
            tuple(function for function, _location in lines.frames_at(vaddr)) for vaddr in range(at, at + 32)
        }
        lines.close()
    assert (
        "shop::order::{lambda}::operator()",
        "shop::Task<shop::order(void* (*)(int))::<lambda()> >::run",
        SHOP_ORDER,
    ) in names
