"""The helpers' jobs for names: symbols and source lines of untrusted files, and demangling.

The functions in JOBS run in an unprivileged process (sandbox/zygote.py); the classes are their answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bpfleakd.elf.debug_files import has_line_tables, minidebug_image
from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.symbols import SymbolTable
from bpfleakd.elf.vtable_symbols import vtable_classes
from bpfleakd.errors import BadElf
from bpfleakd.printable import printable, shortened
from bpfleakd.symbols.go.code import go_lines
from bpfleakd.symbols.libdw import DwarfLines, libdw
from bpfleakd.symbols.libiberty import demangled, demangler
from bpfleakd.unwind.function_starts import FunctionExtents

JOBS = ("name_addresses", "demangle", "name_vtables")
NAMES_JOB = f"{__name__}:name_addresses"
DEMANGLE_JOB = f"{__name__}:demangle"
VTABLES_JOB = f"{__name__}:name_vtables"

TEXT_LIMIT_CHARACTERS = 4_096


class SourceFrame(msgspec.Struct, frozen=True):
    """A function at an address, and the "file:line" that runs there; None if unknown."""

    function: str | None
    location: str | None


class NamedAddress(msgspec.Struct, frozen=True, tag=True):
    """The function's symbol at an address, and the source frames, innermost inlined one first.

    `start` is the beginning of a function without any name (vaddr), None if unknown.
    """

    vaddr: int
    symbol: str | None = None
    frames: tuple[SourceFrame, ...] = ()
    start: int | None = None


class Demangled(msgspec.Struct, frozen=True, tag=True):
    """The readable form of one name."""

    text: str


class NamedVtable(msgspec.Struct, frozen=True, tag=True):
    """The mangled class of a vtable; objects point to this offset in the file."""

    offset: int
    name: str


def prepare() -> None:
    """Load everything needed while files can still be opened, by reading bpfleakd's own program."""
    libdw()
    demangler()
    demangled("_ZN3foo3barEv")
    with open(sys.executable, "rb") as file:
        answers: list[object] = []
        with ElfImage.open(file.fileno()) as image:
            name_addresses(
                [file.fileno()], ([(image.header.entry, image.header.entry)], True), answers.append
            )


def name_addresses(files: Sequence[int], arguments: Any, answer: Callable[[object], None]) -> None:
    """Name addresses of the program in `files`, by its own symbols and those of the debug files behind it.

    `arguments` are pairs, and whether source lines are wanted. A pair is the address to look up, and the
    original one: a return address belongs to the call before it; but if no function is there, to the function
    that begins at it (a made-up first frame).
    """
    images = [ElfImage.open(file) for file in files]
    if len(images) == 1 and (inside := minidebug_image(images[0])) is not None:
        images.append(inside)
    places, with_lines = arguments
    symbols, go = _symbols_of(images), go_lines(images[0])
    lines = _lines_of(images, files) if with_lines else None
    extents: FunctionExtents | None = None
    for code_vaddr, vaddr in places:
        symbol = _symbol_at(symbols, code_vaddr, vaddr)
        frames = [SourceFrame(one.name, one.location) for one in go.frames(code_vaddr)] if go else []
        if not frames and lines is not None:
            frames = _source_frames(lines, code_vaddr)
        start = None
        if symbol is None and not any(frame.function for frame in frames):
            extents = extents or FunctionExtents(images[0])
            start = extents.start_of(code_vaddr)
        answer(NamedAddress(code_vaddr, symbol, tuple(frames), start))


def demangle(_files: Sequence[int], arguments: Any, answer: Callable[[object], None]) -> None:
    """Answer each name with its readable form, in order."""
    for name in arguments:
        answer(Demangled(_shown(demangled(name))))


def name_vtables(files: Sequence[int], arguments: Any, answer: Callable[[object], None]) -> None:
    """Answer with the classes of those offsets in the file that are vtables with symbols."""
    with ElfImage.open(files[0]) as image:
        vaddrs = {image.vaddr_of(offset): offset for offset in arguments}
        for vaddr, name in vtable_classes(image, [one for one in vaddrs if one is not None]).items():
            answer(NamedVtable(vaddrs[vaddr], name))


def _symbols_of(images: Sequence[ElfImage]) -> SymbolTable | None:
    try:
        return SymbolTable(images)
    except BadElf:
        return None


def _lines_of(images: Sequence[ElfImage], files: Sequence[int]) -> DwarfLines | None:
    for image, file in zip(images, files, strict=False):
        try:
            if has_line_tables(image):
                return DwarfLines(file)
        except (BadElf, OSError):
            continue
    return None


def _symbol_at(symbols: SymbolTable | None, code_vaddr: int, vaddr: int) -> str | None:
    if symbols is None:
        return None
    try:
        if symbol := symbols.lookup(code_vaddr):
            return symbol.name
        entered = symbols.lookup(vaddr)
    except BadElf:
        return None
    return entered.name if entered and entered.vaddr == vaddr else None


def _source_frames(lines: DwarfLines, vaddr: int) -> list[SourceFrame]:
    found = lines.frames_at(vaddr)
    return [
        SourceFrame(function and _shown(function), location and _shown(location))
        for function, location in found
    ]


def _shown(text: str) -> str:
    return shortened(printable(text), TEXT_LIMIT_CHARACTERS)
