"""A code object in another process: its function, file and lines.

All of it is untrusted: sizes are bounded, types are checked by their type object, texts are made printable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from msgspec import Struct

from bpfleakd.model.code.stack_word import hash_word
from bpfleakd.printable import printable, shortened
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.cpython.layout import CPythonLayout
from bpfleakd.runtimes.cpython.line_table import line_at
from bpfleakd.runtimes.cpython.texts import TextReader

_LENGTH = 16  # PyVarObject.ob_size
_BYTES_DATA = 32  # PyBytesObject.ob_sval
# A word of the walker cannot express a place beyond 16,383 units of bytecode (frames.py). Each entry covers
# at least one of them, and most entries have two to five bytes. Instructions beyond that get the function's
# first line.
_LINES_MAX_BYTES = 32 << 10
_NAME_SHOWN = 256
_FILE_SHOWN = 1024
_WORD_MASK = (1 << 64) - 1


class CodeObject(Struct, frozen=True):
    """The content of a code object. `check` is the stack walker's hash of it.

    `first_traced` is the unit of the bytecode from which on Python's own tracebacks show the frame: before it
    (3.11 and later) the interpreter prepares the call, or runs a helper function.
    """

    function: str
    file: str
    first_line: int
    lines: bytes
    first_traced: int
    version: tuple[int, int]
    check: int

    def line(self, offset_bytes: int) -> int | None:
        """The line of the instruction at that offset of the bytecode."""
        return line_at(self.version, self.lines, self.first_line, offset_bytes)


class ObjectTypes(Struct, frozen=True):
    """The addresses of PyCode_Type, PyUnicode_Type, PyBytes_Type and PyType_Type."""

    code: int
    text: int
    data: int
    type: int


def check_of(lines: int, constants: int, names: int) -> int:
    """The hash of a code object by the three words of Layout.code_checks: note_code of bpf/python.h."""
    return hash_word(names, lines ^ constants << 16 & _WORD_MASK)


def hash_of(checks: Iterable[int]) -> int:
    """The hash of 32 bits over the hashes of code objects, innermost first: RawStack.checks."""
    value = 0
    for check in checks:
        value = hash_word(value, check) & 0xFFFFFFFF
    return value


class CodeObjectReader:
    """Reads code objects."""

    def __init__(self, memory: RemoteMemory, layout: CPythonLayout, types: ObjectTypes) -> None:
        self._memory = memory
        self._layout = layout
        self._types = types
        self._texts = TextReader(memory, layout, types.text)

    def read(self, address: int) -> CodeObject | None:
        """The code object at an address; None if there is none, or an implausible one."""
        try:
            return self._read(address)
        except (OSError, ValueError):
            return None

    def _read(self, address: int) -> CodeObject | None:
        layout, memory = self._layout, self._memory
        if not self._is(address, self._types.code):
            return None
        name = layout.code_name if layout.code_qualname is None else layout.code_qualname
        first_line = memory.word(address + layout.code_firstlineno) & 0xFFFFFFFF
        file = self._texts.read(memory.word(address + layout.code_filename))
        code = CodeObject(
            function=shortened(printable(self._texts.read(memory.word(address + name))), _NAME_SHOWN),
            file=shortened(printable(file), _FILE_SHOWN),
            first_line=first_line,
            lines=self._bytes(memory.word(address + layout.code_lines)),
            first_traced=self._first_traced(address),
            version=layout.version,
            check=check_of(*(memory.word(address + offset) for offset in layout.code_checks)),
        )
        # It may have been freed during the reading.
        return code if self._is(address, self._types.code) else None

    def _is(self, address: int, type_address: int) -> bool:
        """Whether there is an object of that type, without a sign that it was freed."""
        count, found = struct.unpack("<QQ", self._memory.read(address, 16))
        # 3.14 has flags in the upper half; in other versions it is only used after the memory was freed.
        is_counted = bool(count & 0xFFFFFFFF) and (self._layout.version >= (3, 14) or count >> 32 == 0)
        return is_counted and found == type_address

    def _first_traced(self, address: int) -> int:
        """`_co_firsttraceable`, which has been 16 bytes before the bytecode ever since it exists (3.11)."""
        adaptive = self._layout.code_adaptive
        return self._memory.word(address + adaptive - 16) & 0xFFFFFFFF if adaptive else 0

    def _bytes(self, address: int) -> bytes:
        size_bytes = self._memory.word(address + _LENGTH)
        if not self._is(address, self._types.data):
            raise ValueError("no table of lines")
        return self._memory.read(address + _BYTES_DATA, min(size_bytes, _LINES_MAX_BYTES))
