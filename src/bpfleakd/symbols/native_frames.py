"""Frames in ELF files: functions, lines and the functions that were inlined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bpfleakd.elf.symbols import Symbol
from bpfleakd.model.stack import Frame, FrameKind
from bpfleakd.symbols.demangle import Demangler
from bpfleakd.symbols.module_cache import Module
from bpfleakd.symbols.source_lines import SourceFrame, SourceLines

__all__ = ["ModulePlace", "native_frames"]


@dataclass(frozen=True, slots=True)
class ModulePlace:
    """An address in a module.

    `code_vaddr` is what is looked up, which for a return address is one less than the `vaddr` of `address`:
    the call may be the last instruction of its function. Both are None outside the file's segments.
    """

    address: int
    vaddr: int | None
    code_vaddr: int | None


def native_frames(
    module: Module,
    name: str,
    kind: FrameKind,
    places: Sequence[ModulePlace],
    demangler: Demangler | None,
    lines: SourceLines | None,
) -> list[tuple[Frame, ...]]:
    """Return the frames at each place, the innermost inlined one first; at least one for each."""
    symbols = [_symbol(module, place) for place in places]
    raw_names = {symbol.name for symbol in symbols if symbol}
    names = demangler.demangle_all(raw_names) if demangler else {raw: raw for raw in raw_names}
    source = _source_frames(module, places, lines)
    return [
        _frames(
            names[symbol.name] if symbol else None, name, kind, place, source.get(place.code_vaddr or 0, ())
        )
        for place, symbol in zip(places, symbols, strict=True)
    ]


def _symbol(module: Module, place: ModulePlace) -> Symbol | None:
    if place.code_vaddr is None or place.vaddr is None:
        return None
    if symbol := module.symbol(place.code_vaddr):
        return symbol
    # No call ends where a function begins: a made-up return address, of the first function of a context.
    entered = module.symbol(place.vaddr)
    return entered if entered and entered.vaddr == place.vaddr else None


def _source_frames(
    module: Module, places: Sequence[ModulePlace], lines: SourceLines | None
) -> dict[int, tuple[SourceFrame, ...]]:
    path = module.lines_path if lines else None
    if lines is None or path is None:
        return {}
    vaddrs = {place.code_vaddr for place in places if place.code_vaddr is not None}
    return lines.resolve(path, vaddrs, module.identity)


def _frames(
    function: str | None, module: str, kind: FrameKind, place: ModulePlace, source: Sequence[SourceFrame]
) -> tuple[Frame, ...]:
    def frame(function: str | None, location: str | None, inlined: bool) -> Frame:
        return Frame(function, module, place.vaddr, location, place.address, kind, inlined)

    if not source:
        return (frame(function, None, inlined=False),)
    *inlined, holder = source
    return (
        *(frame(inner.function, inner.location, inlined=True) for inner in inlined),
        frame(function or holder.function, holder.location, inlined=False),
    )
