"""Frames to analyse."""

from __future__ import annotations

from bpfleakd.model.code.stack import Frame, FrameKind


def native(
    function: str | None, module: str | None = "shop", offset: int = 0x1139, *, inlined: bool = False
) -> Frame:
    return Frame(function, module, offset, None, 0x5555_5555_0000 + offset, FrameKind.NATIVE, inlined)


def jit(function: str, module: str | None = None, *, address: int = 0x7F00_0000_1000) -> Frame:
    return Frame(function, module, None, None, address, FrameKind.JIT)


def interpreted(
    function: str | None, module: str | None = "shop", location: str | None = "shop.py:17"
) -> Frame:
    return Frame(function, module, None, location, 0x7F00_0000_3000, FrameKind.INTERPRETED)


def unknown(address: int = 0x7F00_0000_2000) -> Frame:
    return Frame(None, None, None, None, address, FrameKind.UNKNOWN)
