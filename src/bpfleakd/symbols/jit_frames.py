"""Frames in code that was compiled at run time, named by a perf map."""

from __future__ import annotations

import re

from bpfleakd.model import Frame, FrameKind
from bpfleakd.symbols.perf_map import PerfMap

__all__ = ["JIT_MODULE", "jit_frame"]

JIT_MODULE = "[jit]"

# .NET: "instance void [System.Private.CoreLib] System.Threading.Thread::Start()[Tier1]".
_DOTNET_ASSEMBLY = re.compile(r"(?:^| )\[([\w.+-]{1,128})\] \S+::")


def jit_frame(perf_map: PerfMap, address: int, code_address: int) -> Frame | None:
    """Return the frame of an address, looked up at `code_address`; None where the map has no entry."""
    symbol = perf_map.lookup(code_address)
    if symbol is None:
        return None
    assembly = _DOTNET_ASSEMBLY.search(symbol.name)
    module = assembly[1] if assembly else JIT_MODULE
    return Frame(symbol.name, module, None, None, address, FrameKind.JIT)
