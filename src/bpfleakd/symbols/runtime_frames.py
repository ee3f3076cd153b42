"""Frames that do not come from files: named by a perf map, or by the language runtime of the process.

Three kinds: an address in compiled code; a managed frame, which belongs to the address before it; and a word
of a stack that is no address but a frame of an interpreter.

Rule: a method has one name, whatever its source. The compilation tier (.NET's "[Tier0]", V8's "*") is
omitted, since it changes while the program runs, and differs from run to run: a call site would seem to
change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from bpfleakd.model.code.managed_frame import managed_frames
from bpfleakd.model.code.method import FrameNames, ManagedNames, Method, dotnet_assembly
from bpfleakd.model.code.stack import Frame, FrameKind, RawStack
from bpfleakd.symbols.dotnet_names import method_name
from bpfleakd.symbols.perf_map import PerfMap

JIT_MODULE = "[jit]"

# V8: "JS:*leak /srv/app.js:3:14" ("LazyCompile:*leak" and others before Node.js 20), where ~ is interpreted,
# ^ Sparkplug, + Maglev and * TurboFan.
_V8_TIER = re.compile(r"^(JS|LazyCompile|Function|Eval|Script):[~^+*]'?")

# bpf/abi_python.h PYTHON_FRAME.
_INTERPRETED = 1 << 63


def jit_frame(perf_map: PerfMap, address: int, code_address: int) -> Frame | None:
    """The frame of an address, looked up at `code_address`; None if the map has no entry."""
    symbol = perf_map.lookup(code_address)
    if symbol is None:
        return None
    assembly = dotnet_assembly(symbol.name)
    name = _dotnet_name(symbol.name, assembly) if assembly else _V8_TIER.sub(r"\1:", symbol.name)
    return Frame(name, assembly or JIT_MODULE, None, None, address, FrameKind.JIT)


def method_frames(
    methods: Sequence[Method], address: int, kind: FrameKind = FrameKind.JIT
) -> tuple[Frame, ...]:
    """Frames of the methods that a runtime reports at an address, innermost first.

    The last method has inlined the others.
    """
    last = len(methods) - 1
    return tuple(
        Frame(
            method.name,
            method.module or JIT_MODULE,
            None,
            method.location,
            address,
            kind,
            inlined=number < last,
            is_library=method.is_library,
        )
        for number, method in enumerate(methods)
    )


def _dotnet_name(name: str, assembly: str) -> str:
    """A readable method name.

    For example of "instance void [System.Private.CoreLib] System.Threading.Thread::Start()[Tier1]".
    """
    owner, _colons, method = name.partition(f"[{assembly}] ")[2].partition("::")
    return method_name(owner, method.partition("(")[0])


def named_managed_frames(stack: RawStack, source: ManagedNames | None) -> dict[int, tuple[Frame, ...]]:
    """The frames of each managed address of a stack, by its index; empty without a source of names."""
    if source is None:
        return {}
    return {
        index: method_frames(source.find(frame), frame.place, source.kind)
        for index, frame in managed_frames(stack.addresses)
    }


def is_interpreted(address: int) -> bool:
    """Whether a word of a stack represents a frame of an interpreter."""
    return bool(address & _INTERPRETED)


def interpreted_frames(stack: RawStack, source: FrameNames | None) -> Iterator[tuple[Frame, ...]]:
    """Yield the frames of each such word of a stack, in order."""
    words = [address for address in stack.addresses if is_interpreted(address)]
    if not words:
        return
    if source is None:
        yield from ((_unnamed(word & ~_INTERPRETED),) for word in words)
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
