"""The debug information of a compiled method (nmethod): the methods at each address of its code.

For each return address, a PcDesc has the position of the scopes there. A scope describes one method: the
position of its caller's scope (0 if there is none), the method (its number in the metadata of the code) and
the index of the bytecode that runs. (src/hotspot/share/code/pcDesc.hpp, scopeDesc.cpp)
"""

from __future__ import annotations

import struct

import numpy as np
from msgspec import Struct

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.compressed import NumberReader
from bpfleakd.runtimes.jvm.layout import DebugLayout

_PC_DESC = np.dtype([("pc", "<i4"), ("scope", "<i4"), ("objects", "<i4"), ("flags", "<i4")])
_PC_DESCS_MAX = 1 << 17
_DEPTH_MAX = 64
_SCOPE_MAX_BYTES = 15  # three numbers
_SYNCHRONIZATION_ENTRY = -1  # InvocationEntryBci, which is what a bytecode index is counted from


class Scope(Struct, frozen=True):
    """A method that contains an instruction. `bytecode_index` is -1 at the method's entry."""

    method: int
    bytecode_index: int


class DebugInfo:
    """Reads the debug information of one process' compiled methods."""

    def __init__(self, memory: RemoteMemory, layout: DebugLayout) -> None:
        self._memory = memory
        self._layout = layout

    def scopes(self, blob: int, offset: int) -> list[Scope]:
        """The methods at a return address, `offset` bytes from the beginning of the code; innermost first.

        Raises OSError or ValueError.
        """
        memory, layout = self._memory, self._layout
        head = memory.read(blob, layout.read_bytes)
        pcs, data, metadata = self._places(blob, head)
        begin, end = (struct.unpack_from("<i", head, at)[0] for at in (layout.pcs_begin, layout.pcs_end))
        count = (end - begin) // _PC_DESC.itemsize
        if not 0 < count <= _PC_DESCS_MAX:
            return []
        descs = np.frombuffer(memory.read(pcs, count * _PC_DESC.itemsize), _PC_DESC)
        row = int(np.searchsorted(descs["pc"], offset))
        if row >= count or int(descs["pc"][row]) != offset:
            return []
        return self._decoded(data, metadata, int(descs["scope"][row]))

    def _places(self, blob: int, head: bytes) -> tuple[int, int, int]:
        """The addresses of the PcDescs, of the descriptions of scopes, and of the metadata."""
        layout = self._layout
        base = blob
        (data,) = struct.unpack_from("<Q", head, layout.data)
        if not layout.pcs_in_blob:
            base = data
        (begin,) = struct.unpack_from("<i", head, layout.pcs_begin)
        if layout.data_begin is not None:
            data += struct.unpack_from("<i", head, layout.data_begin)[0]
        if layout.metadata is not None:
            metadata = blob + struct.unpack_from("<i", head, layout.metadata)[0]
        elif layout.mutable_data is not None and layout.relocation_size is not None:
            (mutable,) = struct.unpack_from("<Q", head, layout.mutable_data)
            metadata = mutable + struct.unpack_from("<i", head, layout.relocation_size)[0]
        else:
            raise ValueError("the metadata are at an unknown place")
        return base + begin, data, metadata

    def _decoded(self, data: int, metadata: int, at: int) -> list[Scope]:
        scopes: list[Scope] = []
        while at and len(scopes) < _DEPTH_MAX:
            numbers = NumberReader(
                self._memory.read(data + at, _SCOPE_MAX_BYTES), excludes_zero=self._layout.is_excluding_zero
            )
            caller, method, index = numbers.number(), numbers.number(), numbers.number()
            if not method:
                raise ValueError("a scope without a method")
            # Numbers of metadata begin at 1.
            address = self._memory.word(metadata + 8 * (method - 1))
            scopes.append(Scope(address, index + _SYNCHRONIZATION_ENTRY))
            at = caller
        return scopes
