"""A dict with text keys in another process: reads one of its first values."""

from __future__ import annotations

import struct

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.layout import CPythonLayout
from bpfleakd.runtimes.cpython.texts import TextReader

_MA_KEYS = 32
# A class has __module__ among its first names.
_ENTRIES_MAX = 16
_LOG2_SIZE_MAX = 24
_UNICODE_KEYS = 1


def find_text_value(
    memory: RemoteMemory, texts: TextReader, layout: CPythonLayout, address: int, key: str
) -> str | None:
    """The text under a key; None if it is not among the first entries. Raises OSError or ValueError."""
    keys = memory.word(address + _MA_KEYS)
    entries, step, key_at, count = _entries(memory, layout, keys)
    for index in range(min(count, _ENTRIES_MAX)):
        key_object, value = struct.unpack("<QQ", memory.read(entries + index * step + key_at, 16))
        if key_object and value and texts.read(key_object) == key:
            return texts.read(value)
    return None


def last_values(memory: RemoteMemory, layout: CPythonLayout, keys: int, limit: int) -> list[int]:
    """The addresses of the last values; `keys` is ma_keys. Raises OSError or ValueError."""
    entries, step, key_at, count = _entries(memory, layout, keys)
    first = max(0, count - limit)
    raw = memory.read(entries + first * step, (min(count, limit)) * step)
    return [value for (value,) in struct.iter_unpack(f"<{key_at + 8}xQ", raw)]


def _entries(memory: RemoteMemory, layout: CPythonLayout, keys: int) -> tuple[int, int, int, int]:
    """The first entry, the size of an entry, the key's offset in it, and the number of entries."""
    if layout.version >= (3, 11):
        log2_size, log2_index_bytes, kind = memory.read(keys + 8, 3)
        count, indices = memory.word(keys + 24), keys + 32
        if max(log2_size, log2_index_bytes) > _LOG2_SIZE_MAX:
            raise ValueError("not the keys of a dict")
        step, key_at = (16, 0) if kind == _UNICODE_KEYS else (24, 8)
        return indices + (1 << log2_index_bytes), step, key_at, count
    size, count, indices = memory.word(keys + 8), memory.word(keys + 32), keys + 40
    if not 0 < size <= 1 << _LOG2_SIZE_MAX:
        raise ValueError("not the keys of a dict")
    index_bytes = 1 if size <= 0xFF else 2 if size <= 0xFFFF else 4
    return indices + size * index_bytes, 24, 8, count
