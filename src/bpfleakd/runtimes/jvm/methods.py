"""The methods of one JVM: names and unwind tables of its code, names of interpreted frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bpfleakd.model.code.managed_frame import ManagedFrame
from bpfleakd.model.code.method import Method
from bpfleakd.model.code.stack import FrameKind
from bpfleakd.model.runtimes.managed import AreaKind, RuntimeArea
from bpfleakd.runtimes.jvm.code import CodeReading, JavaCode
from bpfleakd.runtimes.jvm.names import JavaNames
from bpfleakd.unwind.managed_code import CodeRange
from bpfleakd.unwind.table import UnwindTable


class JavaMethods:
    """Compiled code.

    `tables` unwind it, the interpreter and stubs; changed code has another `tables` object.
    """

    is_live = True

    def __init__(self, names: JavaNames, code: JavaCode) -> None:
        self.generation = 0
        self.tables: Sequence[UnwindTable] = ()
        self._code = code
        self._names = names
        self._take(code.first())

    @property
    def failure(self) -> str | None:
        """Why new code has no names; None if it has."""
        return self._code.failure

    @property
    def code_cache(self) -> RuntimeArea:
        """The memory of all code."""
        snapshot = self._names.snapshot
        return RuntimeArea(AreaKind.CODE_CACHE, snapshot.used_bytes, snapshot.committed_bytes)

    def refresh(self, now_ns: int) -> None:
        """Process new code."""
        self._take(self._code.refresh(now_ns))

    def find(self, address: int) -> Sequence[Method] | None:
        """The methods at an address; empty for stubs and methods that Java omits from stacks."""
        return self._names.find(address)

    def close(self) -> None:
        """Stop reading code, and drop known names."""
        self._code.close()
        self._names.forget()

    def _take(self, reading: CodeReading | None) -> None:
        if reading is not None:
            self._names.snapshot = reading.snapshot
            self.tables = reading.tables
            self.generation += 1


class JavaFrames:
    """Interpreted frames.

    They are shown like compiled ones, because a method changes from one to the other.
    """

    kind = FrameKind.JIT

    def __init__(self, names: JavaNames) -> None:
        self._names = names

    def ranges(self, _now_ns: int) -> Sequence[CodeRange]:
        """None: Java's frames have many sizes, so tables describe its code."""
        return ()

    def note(self, frames: Iterable[ManagedFrame]) -> None:
        """Read the methods of these frames now: their class may be unloaded before they are shown."""
        for frame in frames:
            self._names.interpreted(frame)

    def find(self, frame: ManagedFrame) -> Sequence[Method]:
        """The method of a frame; empty for one that Java leaves out of stacks."""
        return self._names.interpreted(frame)
