"""Current values of JVM options (-XX:...), wherever they were set; read from its memory."""

from __future__ import annotations

import struct

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.layout import FlagLayout

_FLAGS_MAX = 8_192


def read_flag(memory: RemoteMemory, layout: FlagLayout | None, name: str) -> bool | None:
    """Whether an option is on; None if the JVM does not have it, or if it cannot be read."""
    value = _value(memory, layout, name, 1)
    return None if value is None else value != b"\0"


def read_size(memory: RemoteMemory, layout: FlagLayout | None, name: str) -> int | None:
    """The bytes of an option such as MaxHeapSize (a size_t); None as above."""
    value = _value(memory, layout, name, 8)
    return None if value is None else int.from_bytes(value, "little")


def _value(memory: RemoteMemory, layout: FlagLayout | None, name: str, size: int) -> bytes | None:
    if layout is None:
        return None
    try:
        count = min(memory.word(layout.count), _FLAGS_MAX)
        flags = memory.read(memory.word(layout.flags), count * layout.flag_bytes)
        places = range(0, len(flags), layout.flag_bytes)
        names = [struct.unpack_from("<Q", flags, at + layout.name)[0] for at in places]
        wanted = name.encode() + b"\0"
        # All at once: each name may be on a different page.
        for at, text in zip(places, memory.gather(names, len(wanted)), strict=True):
            if text == wanted:
                return memory.read(struct.unpack_from("<Q", flags, at + layout.value)[0], size)
    except (OSError, ValueError, struct.error):
        return None
    return None
