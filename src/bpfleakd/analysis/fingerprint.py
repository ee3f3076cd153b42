"""Names for call sites that stay the same between runs of the same build.

A stack's fingerprint is made of what does not depend on where the loader or the JIT put things: build-id
and offset for frames in files, the method's name for code made at run time.
"""

from __future__ import annotations

import hashlib

from bpfleakd.model.code.stack import Frame, FrameKind, Stack
from bpfleakd.model.site import AllocationKind

__all__ = ["fingerprint"]

_HEX_DIGITS = 16


def fingerprint(kind: AllocationKind, stack: Stack) -> str:
    """16 hexadecimal digits: SHA-256 over the kind and the frames, cut to 64 bits."""
    parts = [kind.value]
    for frame, build_id in zip(stack.frames, stack.build_ids, strict=True):
        # In a file inlined frames follow from the address of the frame that holds them. What a JIT inlines
        # differs from one compilation to the next.
        if not frame.inlined or frame.kind is FrameKind.JIT:
            parts.append(_identity(frame, build_id))
    digest = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape"))
    return digest.hexdigest()[:_HEX_DIGITS]


def _identity(frame: Frame, build_id: str | None) -> str:
    if frame.kind is FrameKind.NATIVE and frame.offset is not None:
        return f"{build_id or frame.module}+{frame.offset:x}"
    if frame.function:
        return f"{frame.function} {frame.location}" if frame.kind is FrameKind.INTERPRETED else frame.function
    return "?"
