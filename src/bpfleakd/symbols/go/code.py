"""The Go code in a file: its Go version, its address, and its names."""

from __future__ import annotations

from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.symbols.go.build_info import read_build_info
from bpfleakd.symbols.go.layouts import FIRST_RELEASE, LAST_RELEASE, GoLayout, layout_of
from bpfleakd.symbols.go.line_table import LineTable, pclntab_section
from bpfleakd.symbols.go.module_data import ModuleData, read_module_data


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
