"""Tables of a library that calls itself libjvm.so and tries to be read forever."""

from __future__ import annotations

import ctypes
import os
import struct

import pytest

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.vm_structs import EXPORTED, read_vm_structs

ROW = struct.Struct("<6Q")
COLUMNS = ("TypeName", "FieldName", "IsStatic", "Offset", "Address")


def test_names_without_end() -> None:
    """Each row has another name: reading stops soon."""
    texts = ctypes.create_string_buffer(b"klass\0" * 10_000)
    first = ctypes.addressof(texts)
    rows = b"".join(ROW.pack(first + 6 * number, first, 0, 0, 0, 0) for number in range(8_000))
    table = ctypes.create_string_buffer(rows + bytes(ROW.size))
    words = (ctypes.c_uint64 * len(EXPORTED))()
    addresses = {name: ctypes.addressof(words) + 8 * place for place, name in enumerate(EXPORTED)}
    for place, name in enumerate(EXPORTED):
        if name.endswith("Stride"):
            words[place] = ROW.size
        elif name.endswith("Offset"):
            words[place] = next((8 * at for at, end in enumerate(COLUMNS) if end in name), 0)
        else:
            words[place] = ctypes.addressof(table)
    with RemoteMemory(os.getpid()) as memory, pytest.raises(ValueError, match="too many names"):
        read_vm_structs(memory, addresses, {"Klass"}, set())
