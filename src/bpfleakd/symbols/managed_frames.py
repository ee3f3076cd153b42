"""Managed frames: each stands for the address before it, and has the names that the runtime gives it."""

from __future__ import annotations

from bpfleakd.model.managed_frame import ManagedFrame, managed_frames
from bpfleakd.model.method import ManagedNames
from bpfleakd.model.stack import Frame, RawStack
from bpfleakd.symbols.jit_frames import JIT_MODULE

__all__ = ["named_managed_frames"]


def named_managed_frames(stack: RawStack, source: ManagedNames | None) -> dict[int, tuple[Frame, ...]]:
    """The frames of each managed address of a stack, by its number in it; none without a source of names."""
    if source is None:
        return {}
    return {index: _named(frame, source) for index, frame in managed_frames(stack.addresses)}


def _named(frame: ManagedFrame, source: ManagedNames) -> tuple[Frame, ...]:
    return tuple(
        Frame(
            method.name,
            method.module or JIT_MODULE,
            None,
            f"{method.file}:{method.line}" if method.file else None,
            frame.place,
            source.kind,
        )
        for method in source.find(frame)
    )
