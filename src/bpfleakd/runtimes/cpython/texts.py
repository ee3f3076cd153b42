"""Python's str in another process."""

from __future__ import annotations

import struct

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.layout import CPythonLayout

_OB_TYPE, _LENGTH, _STATE = 8, 16, 32
_MAX_CHARACTERS = 4096
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


class TextReader:
    """Reads str objects in their compact form (PEP 393), which names and files always have."""

    def __init__(self, memory: RemoteMemory, layout: CPythonLayout, text_type: int) -> None:
        self._memory = memory
        self._layout = layout
        self._text_type = text_type

    def size_of(self, address: int) -> int | None:
        """The bytes of a compact str; None for another. Raises OSError."""
        head = self._memory.read(address, self._layout.compact_bytes)
        state = head[_STATE]
        kind, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if not is_compact or kind not in _ENCODINGS:
            return None
        length = int.from_bytes(head[_LENGTH : _LENGTH + 8], "little")
        before = self._layout.ascii_bytes if is_ascii else self._layout.compact_bytes
        return before + (length + 1) * kind

    def read(self, address: int) -> str:
        """The text, cut at a limit. Raises OSError, or ValueError if it is not such an object."""
        layout = self._layout
        head = self._memory.read(address, layout.compact_bytes)
        kind_of_object, length = struct.unpack_from("<QQ", head, _OB_TYPE)
        state = head[_STATE]
        kind, is_compact, is_ascii = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
        if kind_of_object != self._text_type or not is_compact or kind not in _ENCODINGS:
            raise ValueError("not a compact str")
        data = layout.ascii_bytes if is_ascii else layout.compact_bytes
        raw = self._memory.read(address + data, min(length, _MAX_CHARACTERS) * kind)
        return raw.decode(_ENCODINGS[kind], errors="replace")
