"""Stacks, as recorded and with names."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class FrameKind(StrEnum):
    """The source of an address' name."""

    NATIVE = "native"
    JIT = "jit"
    INTERPRETED = "interpreted"
    VDSO = "vdso"
    UNKNOWN = "unknown"


class StackEnd(StrEnum):
    """Why the walk of a stack ended. Only BOTTOM is a complete stack."""

    BOTTOM = "bottom"
    DEPTH = "depth"
    READ_FAULT = "read-fault"
    NO_RULE = "no-rule"
    FRAME_POINTER_END = "frame-pointer-end"
    TABLE_PENDING = "table-pending"
    LOST = "lost"
    GO_STACK = "go-stack"


class RawStack(Struct, frozen=True):
    """A stack as the kernel side recorded it, innermost first.

    `addresses[0]` is the probed allocator function itself (an exact program counter); the others are return
    addresses, so the call is at `address - 1`. A word with the highest bit set is not an address but a frame
    of an interpreter; `checks` verify the names of these frames.
    """

    addresses: tuple[int, ...]
    end: StackEnd
    checks: tuple[int, ...] = ()


class Frame(Struct, frozen=True):
    """One named frame.

    `offset` is the virtual address inside the ELF file (what addr2line takes), None outside files.
    `location` is "file:line" or None. `inlined` frames share the address of the frame that holds them.
    `function_start` is where a function without a name begins, in the file like `offset`, if known.
    `is_library`: its code belongs to an installed library or package.
    """

    function: str | None
    module: str | None
    offset: int | None
    location: str | None
    address: int
    kind: FrameKind
    inlined: bool = False
    function_start: int | None = None
    is_library: bool = False


class Stack(Struct, frozen=True):
    """A named stack, innermost frame first.

    `build_ids` holds, frame by frame, the build-id of the frame's file (hex) or None; the fingerprint is
    computed from it. `truncated` is None for a stack that reaches the thread's first function. `pending`:
    names of functions in files are still to come.
    """

    frames: tuple[Frame, ...]
    build_ids: tuple[str | None, ...]
    truncated: StackEnd | None
    pending: bool = False


class NamedStack(Struct, frozen=True):
    """A site's stack with names, and its fingerprint.

    `final` is False while a frame outside files has no name, or is in no known mapping: JITs write their perf
    maps late.
    """

    stack: Stack
    fingerprint: str
    final: bool
