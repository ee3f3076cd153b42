"""Frames in ELF files: functions, lines and inlined functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.symbols.installed_code import is_installed_source
from bpfleakd.symbols.naming_jobs import NamedAddress, SourceFrame


class ModulePlace(Struct, frozen=True):
    """An address in a module.

    `code_vaddr` is the address to look up, which for a return address is one less than the `vaddr` of
    `address`: the call may be the last instruction of its function. Both are None outside the file's
    segments.
    """

    address: int
    vaddr: int | None
    code_vaddr: int | None


class ModuleName(Struct, frozen=True):
    """The name of a module in frames; `is_library`: all of its code belongs to an installed library."""

    name: str
    kind: FrameKind
    is_library: bool = False


def native_frames(
    module: ModuleName, places: Sequence[ModulePlace], named: Mapping[int, NamedAddress]
) -> list[tuple[Frame, ...]]:
    """Return the frames at each place, the innermost inlined one first; at least one for each.

    `named` has the known names by `code_vaddr`; a missing place is shown as file and offset.
    """
    return [_frames(module, place, named.get(place.code_vaddr or 0)) for place in places]


def _frames(module: ModuleName, place: ModulePlace, named: NamedAddress | None) -> tuple[Frame, ...]:
    def frame(source: SourceFrame, inlined: bool) -> Frame:
        is_library = module.is_library or bool(source.location and is_installed_source(source.location))
        return Frame(
            source.function,
            module.name,
            place.vaddr,
            source.location,
            place.address,
            module.kind,
            inlined,
            is_library=is_library,
        )

    if named is None:
        return (frame(SourceFrame(None, None), inlined=False),)
    *inlined, holder = named.frames or (SourceFrame(None, None),)
    outer = frame(SourceFrame(named.symbol or holder.function, holder.location), inlined=False)
    return (
        *(frame(inner, inlined=True) for inner in inlined),
        replace(outer, function_start=named.start),
    )
