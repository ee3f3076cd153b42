"""Names for call sites that stay the same between runs of the same build.

A stack's fingerprint depends on nothing that the loader or the JIT chooses: it is made of build-id and offset
for frames in files, and of the method's name for code made at run time.
"""

from __future__ import annotations

import hashlib

from bpfleakd.model.code.stack import Frame, FrameKind, Stack
from bpfleakd.model.site import AllocationKind

_HEX_DIGITS = 16


def fingerprint(kind: AllocationKind, stack: Stack) -> str:
    """16 hexadecimal digits: SHA-256 over the kind and the frames, cut to 64 bits."""
    parts = [kind.value]
    for frame, build_id in zip(stack.frames, stack.build_ids, strict=True):
        # In a file, a frame's address determines the frames inlined into it. What a JIT inlines differs from
        # one compilation to the next.
        if not frame.inlined or frame.kind is FrameKind.JIT:
            parts.append(_identity(frame, build_id))
    digest = hashlib.sha256("\0".join(parts).encode(errors="surrogateescape"))
    return digest.hexdigest()[:_HEX_DIGITS]


def function_identity(frame: Frame, build_id: str | None) -> tuple[str | None, str | None]:
    """The identity of a frame's function: the module and the function's name.

    A function without a name is identified by its file's build-id and the place where it begins. The second
    part is None if that is unknown too.
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
