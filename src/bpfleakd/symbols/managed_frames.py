"""Managed frames: each belongs to the address before it, and has the names from the runtime."""

from __future__ import annotations

from bpfleakd.model.code.managed_frame import managed_frames
from bpfleakd.model.code.method import ManagedNames
from bpfleakd.model.code.stack import Frame, RawStack
from bpfleakd.symbols.jit_frames import method_frames


def named_managed_frames(stack: RawStack, source: ManagedNames | None) -> dict[int, tuple[Frame, ...]]:
    """The frames of each managed address of a stack, by its index; empty without a source of names."""
    if source is None:
        return {}
    return {
        index: method_frames(source.find(frame), frame.place, source.kind)
        for index, frame in managed_frames(stack.addresses)
    }
