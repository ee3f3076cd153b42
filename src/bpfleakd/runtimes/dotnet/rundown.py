"""All methods of a .NET process that have native code, by the rundown that ends a session.

A session without events is started and ended at once. At its end the runtime sends its list of methods: of
all tiers, with those that were compiled ahead of time (ReadyToRun).

No I/O; a helper runs this (stream_jobs.py), at the request of `method_look`.
"""

from __future__ import annotations

import struct

import msgspec
from msgspec import Struct

from bpfleakd.runtimes.dotnet import events
from bpfleakd.runtimes.dotnet.nettrace import BadNettrace, NettraceReader

_METHODS_MAX = 200_000
_MAPPED_OFFSETS_MAX = 1_000_000


class Code(Struct):
    """A compiled method. `il_map`: pairs of native and IL offset, none for code compiled ahead of time."""

    method: events.LoadedMethod
    il_map: tuple[tuple[int, int], ...] = ()


class Rundown(Struct):
    """Methods, and the paths of modules by id. `left_out` methods were beyond the limit."""

    code: list[Code] = msgspec.field(default_factory=list)
    modules: dict[int, str] = msgspec.field(default_factory=dict)
    left_out: int = 0


def parse_rundown(stream: bytes) -> Rundown:
    """The methods in a stream. Raises BadNettrace."""
    found = Rundown()
    # At the end of a session, the map of some code precedes the code itself.
    il_map: events.IlMap | None = None
    mapped = 0
    try:
        for event in NettraceReader().feed(stream):
            if event.number == events.METHOD_END and len(found.code) < _METHODS_MAX:
                code = Code(events.method(event))
                if il_map is not None and il_map.method_id == code.method.id:
                    code.il_map = il_map.pairs
                il_map = None
                found.code.append(code)
            elif event.number == events.METHOD_END:
                found.left_out += 1
            elif event.number == events.IL_MAP_END and mapped < _MAPPED_OFFSETS_MAX:
                il_map = events.il_map(event)
                mapped += len(il_map.pairs)
            elif event.number == events.MODULE_END:
                module_id, path = events.module(event)
                found.modules[module_id] = path
    except struct.error as error:
        raise BadNettrace(f"an event is cut: {error}") from error
    return found
