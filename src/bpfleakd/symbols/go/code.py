"""The Go code in a file: its Go version, the layouts of that version, its address, and its names.

The version is in .go.buildinfo, which begins with a header of 32 bytes: the magic, the size of a pointer,
flags. With flag 2 (Go 1.18 and later) two strings follow, the version and the modules, each after its length
as a varint. Before that there were pointers to them (debug/buildinfo/buildinfo.go).
"""

from __future__ import annotations

import re

from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.printable import printable, shortened
from bpfleakd.symbols.go.line_table import LineTable, pclntab_section
from bpfleakd.symbols.go.module_data import ModuleData, read_module_data

FIRST_RELEASE, LAST_RELEASE = (1, 18), (1, 27)

_MAGIC = b"\xff Go buildinf:"
_HEADER_BYTES = 32
_FLAGS_AT = 15
_STRINGS_INLINE = 2
_VERSION_LIMIT_BYTES = 256
_RELEASE = re.compile(r"go(\d{1,4})\.(\d{1,4})")


class GoLayout(Struct, frozen=True):
    """The layout of the runtime's structures in a release; offsets are in bytes, of 64-bit programs.

    Sources: runtime/mprof.go, runtime2.go and symtab.go of each release, and the DWARF of programs made by
    1.19, 1.21 to 1.24, 1.26 and 1.27. A layout that is equal in two of them is equal in between. Other
    releases are refused, since a changed structure would be misread. Properties that can be checked in the
    process are not listed here but tried (runtimes/go/goroutines.py).

    `functions_data` is the offset in moduledata of the address of go:func.*.

    `counters` is the number of words in the current part of a bucket's record: allocs, frees and the bytes of
    both; the bytes are left out since 1.27. `has_memory_limit`: the collector has a limit, since 1.19. Stacks
    have `stack_max` frames at most, unless GODEBUG=profstackdepth says otherwise.
    """

    functions_data: int
    counters: int
    stack_max: int
    has_memory_limit: bool


def layout_of(release: tuple[int, int]) -> GoLayout | None:
    """The layout of a release; None if it is unknown."""
    if not FIRST_RELEASE <= release <= LAST_RELEASE:
        return None
    return GoLayout(
        functions_data=304 if release < (1, 20) else 320 if release < (1, 27) else 344,
        counters=4 if release < (1, 27) else 2,
        stack_max=32 if release < (1, 23) else 128,
        has_memory_limit=release >= (1, 19),
    )


class BuildInfo(Struct, frozen=True):
    """`version` as in the file; `release` is (1, 19) for go1.19.8, None for any other form."""

    version: str
    release: tuple[int, int] | None


def read_build_info(image: ElfImage) -> BuildInfo | None:
    """The version of Go that built a file; None if the file does not state it in the format of 1.18."""
    section = image.section(".go.buildinfo")
    if section is None:
        return None
    try:
        size_bytes = min(section.size_bytes, _HEADER_BYTES + _VERSION_LIMIT_BYTES)
        data = image.source.read(section.file_offset, size_bytes)
    except BadElf:
        return None
    if not data.startswith(_MAGIC) or len(data) <= _HEADER_BYTES or not data[_FLAGS_AT] & _STRINGS_INLINE:
        return None
    length, position = data[_HEADER_BYTES], _HEADER_BYTES + 1
    if length & 0x80:
        length, position = length & 0x7F | data[position] << 7, position + 1
    text = data[position : position + min(length, _VERSION_LIMIT_BYTES)].decode(errors="surrogateescape")
    found = _RELEASE.search(text)
    release = (int(found[1]), int(found[2])) if found else None
    return BuildInfo(shortened(printable(text), 64), release)


class GoCode(Struct, frozen=True):
    """A file's data on its Go code; addresses are the file's."""

    version: str
    layout: GoLayout
    module: ModuleData
    table: LineTable


def go_lines(image: ElfImage) -> LineTable | None:
    """The names of Go code in a file; None if there is none in a supported format."""
    try:
        return read_go_code(image).table if image.is_go else None
    except BadElf:
        return None


def read_go_code(image: ElfImage, program: GoCode | None = None) -> GoCode:
    """Read a Go program or library. Raises `BadElf` that names the unsupported part.

    A plugin does not state its version, which is that of the `program`: the runtime refuses others.
    """
    info = read_build_info(image)
    if info is not None:
        version, layout = info.version, layout_of(info.release) if info.release else None
    elif program is not None:
        version, layout = program.version, program.layout
    else:
        raise BadElf("its file does not state the Go version that built it, as Go 1.18 and later do")
    if layout is None:
        first, last = ("{}.{}".format(*release) for release in (FIRST_RELEASE, LAST_RELEASE))
        raise BadElf(f"it was built with {version}; supported is Go {first} to {last}")
    section = pclntab_section(image)
    module = read_module_data(image, section, layout.functions_data)
    table = LineTable(image, section, module.text, module.functions_data)
    return GoCode(version, layout, module, table)
