"""Names for call sites that stay the same between runs of the same build.

A stack's fingerprint is made of what does not depend on where the loader or the JIT put things: build-id
and offset for frames in files, the method's name for code made at run time.
"""

from __future__ import annotations

import hashlib

from bpfleakd.model.code.stack import Frame, FrameKind, Stack
from bpfleakd.model.site import AllocationKind

__all__ = ["fingerprint", "function_identity"]

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


def function_identity(frame: Frame, build_id: str | None) -> tuple[str | None, str | None]:
    """What stands for the function of a frame: the module and the function's name.

    Without a name: the file by its build-id, and where in it the function begins. The second is None if not
    even that is known.
    """
    if frame.function or frame.function_start is None:
        return frame.module, frame.function
    return build_id or frame.module, f"+{frame.function_start:#x}"


def _identity(frame: Frame, build_id: str | None) -> str:
    if frame.kind is FrameKind.NATIVE and frame.offset is not None:
        return f"{build_id or frame.module}+{frame.offset:x}"
    if frame.function:
        return f"{frame.function} {frame.location}" if frame.kind is FrameKind.INTERPRETED else frame.function
    return "?"
