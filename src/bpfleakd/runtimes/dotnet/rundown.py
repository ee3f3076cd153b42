"""All methods of a .NET process that have native code, by the rundown that ends a session.

A session with a provider that tells nothing is begun and at once ended: what the runtime sends then is its
list of methods, of all tiers, with those that were compiled ahead of time (ReadyToRun).
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field

from bpfleakd.runtimes.dotnet import events
from bpfleakd.runtimes.dotnet.diagnostics import TIMEOUT_S, DiagnosticsError, Endpoint, Provider
from bpfleakd.runtimes.dotnet.nettrace import BadNettrace, NettraceReader

__all__ = ["Code", "Rundown", "parse_rundown", "take_rundown"]

# 10,000 methods are 1.2 MB.
STREAM_LIMIT_BYTES = 64 << 20
_METHODS_MAX = 200_000
_MAPPED_OFFSETS_MAX = 4_000_000
_BUFFER_MIB = 64
_QUIET = Provider(keywords=0, level=0)


@dataclass(slots=True)
class Code:
    """A compiled method. `lines` are pairs (native offset, IL offset), () for code compiled ahead of time."""

    method: events.LoadedMethod
    lines: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class Rundown:
    """Methods, and the paths of modules by id. `left_out` methods were beyond the limit."""

    code: list[Code] = field(default_factory=list)
    modules: dict[int, str] = field(default_factory=dict)
    left_out: int = 0


def take_rundown(endpoint: Endpoint, timeout_s: float = TIMEOUT_S) -> Rundown:
    """Ask a process for its methods, which takes it 10 to 50 ms for some hundred.

    Raises DiagnosticsError, within `timeout_s` at the latest.
    """
    deadline_s = time.monotonic() + timeout_s
    session = endpoint.start([_QUIET], buffer_mib=_BUFFER_MIB, rundown=True, timeout_s=timeout_s)
    try:
        with endpoint.stopping(session, max(0.001, deadline_s - time.monotonic())):
            stream = session.read_to_end(deadline_s, STREAM_LIMIT_BYTES)
    finally:
        session.close()
    try:
        return parse_rundown(stream)
    except BadNettrace as error:
        raise DiagnosticsError(f"its list of methods cannot be read: {error}") from error


def parse_rundown(stream: bytes) -> Rundown:
    """The methods in a stream. Raises BadNettrace."""
    found = Rundown()
    # Of a method that was compiled more than once each version is told with its map behind it.
    latest: dict[int, Code] = {}
    mapped = 0
    try:
        for event in NettraceReader().feed(stream):
            if event.number == events.METHOD_END and len(found.code) < _METHODS_MAX:
                code = Code(events.method(event))
                latest[code.method.id] = code
                found.code.append(code)
            elif event.number == events.METHOD_END:
                found.left_out += 1
            elif event.number == events.IL_MAP_END and mapped < _MAPPED_OFFSETS_MAX:
                il_map = events.il_map(event)
                mapped += len(il_map.pairs)
                if (owner := latest.get(il_map.method_id)) is not None:
                    owner.lines = il_map.pairs
            elif event.number == events.MODULE_END:
                module_id, path = events.module(event)
                found.modules[module_id] = path
    except struct.error as error:
        raise BadNettrace(f"an event is cut: {error}") from error
    return found
