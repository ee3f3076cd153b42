"""Frames in code that was compiled at run time, named by a perf map.

Rule: a method has one name, whatever its source. The compilation tier (.NET's "[Tier0]", V8's "*") is
omitted, since it changes while the program runs, and differs from run to run: a call site would seem to
change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bpfleakd.model.code.method import Method, dotnet_assembly
from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.symbols.dotnet_names import method_name
from bpfleakd.symbols.perf_map import PerfMap

JIT_MODULE = "[jit]"

# V8: "JS:*leak /srv/app.js:3:14" ("LazyCompile:*leak" and others before Node.js 20), where ~ is interpreted,
# ^ Sparkplug, + Maglev and * TurboFan.
_V8_TIER = re.compile(r"^(JS|LazyCompile|Function|Eval|Script):[~^+*]'?")


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
