"""Frames of an interpreter: words of a stack that are not addresses, named by the runtime."""

from __future__ import annotations

from collections.abc import Iterator

from bpfleakd.model.code.method import FrameNames, Method
from bpfleakd.model.code.stack import Frame, FrameKind, RawStack

_WORD = 1 << 63


def is_interpreted(address: int) -> bool:
    """Whether a word of a stack represents a frame of an interpreter (bpf/abi.h PYTHON_FRAME)."""
    return bool(address & _WORD)


def interpreted_frames(stack: RawStack, source: FrameNames | None) -> Iterator[tuple[Frame, ...]]:
    """Yield the frames of each such word of a stack, in order."""
    words = [address for address in stack.addresses if is_interpreted(address)]
    if not words:
        return
    if source is None:
        yield from ((_unnamed(word & ~_WORD),) for word in words)
        return
    for word, methods in zip(words, source.find(words, stack.checks), strict=True):
        address = source.address_of(word)
        yield (_unnamed(address),) if methods is None else _named(methods, address)


def _named(methods: tuple[Method, ...], address: int) -> tuple[Frame, ...]:
    return tuple(
        Frame(
            method.name,
            method.module,
            None,
            method.location,
            address,
            FrameKind.INTERPRETED,
            is_library=method.is_library,
        )
        for method in methods
    )


def _unnamed(address: int) -> Frame:
    return Frame(None, None, None, None, address, FrameKind.INTERPRETED)
