"""The methods of one Java virtual machine: names and unwind tables for its code."""

from __future__ import annotations

from collections.abc import Sequence

from bpfleakd.model.method import Method
from bpfleakd.runtimes.jvm.code import JavaCode, Reading
from bpfleakd.runtimes.jvm.names import JavaNames
from bpfleakd.unwind.table import UnwindTable

__all__ = ["JavaMethods"]


class JavaMethods:
    """Compiled code. `tables` unwind it, the interpreter and stubs; they are others when that has changed."""

    failure: str | None = None
    is_live = True

    def __init__(self, names: JavaNames, code: JavaCode) -> None:
        self.generation = 0
        self.tables: Sequence[UnwindTable] = ()
        self._code = code
        self._names = names
        self._take(code.first())

    def refresh(self, now_ns: int) -> None:
        """Take in what is new."""
        self._take(self._code.refresh(now_ns))

    def find(self, address: int) -> Sequence[Method] | None:
        """The methods at an address; empty for stubs and what Java leaves out of stacks."""
        return self._names.find(address)

    def close(self) -> None:
        """Read no more code."""
        self._code.close()

    def _take(self, reading: Reading | None) -> None:
        if reading is not None:
            self._names.snapshot = reading.snapshot
            self.tables = reading.tables
            self.generation += 1
