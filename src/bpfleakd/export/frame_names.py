"""The name of a frame in formats with one line of text per frame."""

from __future__ import annotations

from bpfleakd.model.code.stack import Frame
from bpfleakd.printable import printable


def frame_name(frame: Frame) -> str:
    """The function; without one the module and the offset in it, or at least the address.

    "?" if even the address is hidden (api/redaction.py).
    """
    if frame.function:
        return printable(frame.function)
    if frame.module and frame.offset is not None:
        return f"{printable(frame.module.rpartition('/')[2] or frame.module)}+{frame.offset:#x}"
    return f"{frame.address:#x}" if frame.address else "?"


def source_place(frame: Frame) -> tuple[str, int]:
    """The file and the line (from 1) of a frame; ("", 0) if unknown."""
    file, _, line = (frame.location or "").rpartition(":")
    return (printable(file), int(line)) if file and line.isascii() and line.isdigit() else ("", 0)
