"""Frames in ELF files: functions, lines and the functions that were inlined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.symbols.naming_jobs import NamedAddress, SourceFrame

__all__ = ["ModulePlace", "native_frames"]


class ModulePlace(Struct, frozen=True):
    """An address in a module.

    `code_vaddr` is the address to look up, which for a return address is one less than the `vaddr` of
    `address`: the call may be the last instruction of its function. Both are None outside the file's
    segments.
    """

    address: int
    vaddr: int | None
    code_vaddr: int | None


def native_frames(
    name: str, kind: FrameKind, places: Sequence[ModulePlace], named: Mapping[int, NamedAddress]
) -> list[tuple[Frame, ...]]:
    """Return the frames at each place, the innermost inlined one first; at least one for each.

    `named` has the known names by `code_vaddr`; a missing place is shown as file and offset.
    """
    return [_frames(name, kind, place, named.get(place.code_vaddr or 0)) for place in places]


def _frames(
    module: str, kind: FrameKind, place: ModulePlace, named: NamedAddress | None
) -> tuple[Frame, ...]:
    def frame(function: str | None, location: str | None, inlined: bool) -> Frame:
        return Frame(function, module, place.vaddr, location, place.address, kind, inlined)

    if named is None:
        return (frame(None, None, inlined=False),)
    *inlined, holder = named.frames or (SourceFrame(None, None),)
    outer = frame(named.symbol or holder.function, holder.location, inlined=False)
    return (
        *(frame(inner.function, inner.location, inlined=True) for inner in inlined),
        replace(outer, function_start=named.start),
    )
