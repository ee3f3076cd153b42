"""A method in another process: its class, name, file and lines.

All of it is untrusted: sizes are bounded, texts are made printable. A Method* of an unloaded class may point
anywhere: it is only accepted if its class and its constants point to each other.
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.compressed import line_table
from bpfleakd.runtimes.jvm.java_names import file_name, java_method_name
from bpfleakd.runtimes.jvm.layout import MethodLayout

_SYMBOL_MAX_BYTES = 1_024
_POOL_MAX = 1 << 16
# A row has about two bytes, so this is enough for 8,000 lines of one method.
_LINES_MAX_BYTES = 16 << 10
_CHUNK_BYTES = 512
# The memory of a row of lines, and of a method with its strings without their text.
_ROW_BYTES, _METHOD_BYTES = 120, 500
_HAS_LINES = 1
_LINE_MAX = 1 << 32


class JavaMethod(Struct, frozen=True):
    """A method.

    `code` is the address of its bytecode; `lines` are the beginnings of lines in it, and their numbers.

    `is_hidden`: Java itself omits it from stacks. `check` is part of the address of its class' cache of
    constants, by which the stack walker distinguishes it from another method that reuses its memory; 0: the
    class has not been linked yet, so nothing of it has run.
    """

    name: str
    file: str | None
    code: int
    code_bytes: int
    lines: tuple[tuple[int, int], ...]
    is_hidden: bool
    check: int

    def has(self, position: int | None) -> bool:
        """Whether an instruction may be in this method; of one without bytecode, nothing is known."""
        return not self.code_bytes or self.code <= (position or 0) < self.code + self.code_bytes

    @property
    def held_bytes(self) -> int:
        """The approximate memory of this object."""
        return _METHOD_BYTES + _ROW_BYTES * len(self.lines) + 4 * (len(self.name) + len(self.file or ""))

    def line(self, bytecode_index: int) -> int | None:
        """The line of an instruction of its bytecode."""
        if not self.lines or bytecode_index >= self.code_bytes:
            return None
        # The entry of a method belongs to its first line.
        row = bisect_right(self.lines, (max(0, bytecode_index), _LINE_MAX)) - 1
        return self.lines[row][1] if row >= 0 else None


class MethodReader:
    """Reads methods of one process."""

    def __init__(self, memory: RemoteMemory, layout: MethodLayout, *, excludes_zero: bool) -> None:
        self._memory = memory
        self._layout = layout
        self._excludes_zero = excludes_zero

    def read(self, address: int) -> JavaMethod | None:
        """The method at an address; None if there is none."""
        if address % 8:
            return None
        try:
            return self._read(address)
        except (OSError, ValueError):
            return None

    def _read(self, address: int) -> JavaMethod:
        layout, memory = self._layout, self._memory
        method = memory.read(address, layout.method_bytes)
        constant = _word(method, layout.const_method)
        const_method = memory.read(constant, layout.const_bytes)
        pool_address = _word(const_method, layout.constants)
        pool = memory.read(pool_address, layout.pool_bytes)
        length = _word(pool, layout.pool_length, 4)
        klass = _word(pool, layout.pool_holder)
        if memory.word(klass + layout.klass_constants) != pool_address or not 0 < length < _POOL_MAX:
            raise ValueError("its class has other constants")
        name = self._entry(pool_address, length, _word(const_method, layout.name_index, 2))
        holder = self._symbol(memory.word(klass + layout.klass_name))
        flags = _word(const_method, layout.const_flags, 4)
        code_bytes = _word(const_method, layout.code_size, 2)
        code = constant + layout.const_bytes
        return JavaMethod(
            name=java_method_name(holder, name),
            file=self._file(pool, pool_address, length),
            code=code,
            code_bytes=code_bytes,
            lines=self._lines(code + code_bytes) if flags & _HAS_LINES else (),
            is_hidden=bool(self._hidden_flags(method, flags) & layout.hidden_bit),
            check=_word(pool, layout.pool_cache) & 0xFFFF_FFFF,
        )

    def _hidden_flags(self, method: bytes, const_flags: int) -> int:
        return const_flags if self._layout.flags is None else _word(method, self._layout.flags, 2)

    def _file(self, pool: bytes, pool_address: int, length: int) -> str | None:
        if self._layout.pool_source_file is None:
            return None
        index = _word(pool, self._layout.pool_source_file, 2)
        return file_name(self._entry(pool_address, length, index)) if index else None

    def _entry(self, pool: int, length: int, index: int) -> str:
        if not 0 < index < length:
            raise ValueError("a constant that is not there")
        return self._symbol(self._memory.word(pool + self._layout.pool_bytes + 8 * index))

    def _symbol(self, address: int) -> str:
        layout, memory = self._layout, self._memory
        length = int.from_bytes(memory.read(address + layout.symbol_length, 2), "little")
        if not 0 < length <= _SYMBOL_MAX_BYTES:
            raise ValueError(f"a name of {length} bytes")
        return memory.read(address + layout.symbol_body, length).decode("utf-8", "replace")

    def _lines(self, address: int) -> tuple[tuple[int, int], ...]:
        """The table at an address, whose length is not stored; empty without an end."""
        table, decoded_at_bytes = b"", _CHUNK_BYTES
        while len(table) < _LINES_MAX_BYTES:
            # The table may be at the end of readable memory.
            room = min(_CHUNK_BYTES, 4096 - (address + len(table)) % 4096)
            try:
                part = self._memory.read(address + len(table), room)
            except OSError:
                part = b""
            table += part
            if part and len(table) < decoded_at_bytes:
                continue
            rows = line_table(table, excludes_zero=self._excludes_zero)
            if rows is not None or not part:
                return rows or ()
            # The table is decoded from its beginning each time, so its size doubles between attempts.
            decoded_at_bytes = 2 * len(table)
        return ()


def _word(data: bytes, offset: int, size_bytes: int = 8) -> int:
    return int.from_bytes(data[offset : offset + size_bytes], "little")
