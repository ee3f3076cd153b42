"""Names for the code of a Java virtual machine.

Rules:
- An address in compiled code stands for the methods that its debug information has there, the inlined ones
  first. What Java itself leaves out of stacks is left out, and so are stubs: a method has the same frames
  however it runs.
- What is at an address is read when a stack with it is new, and kept until there is other code: the machine
  drops code that is not used any more.
- A frame of the interpreter holds the address of its method, and the walker's word some bits of what tells it
  from another that gets its memory. It has a name if they agree, and if its instruction is the method's.
"""

from __future__ import annotations

from collections.abc import Sequence

from bpfleakd.model.code.managed_frame import ManagedFrame, check_of
from bpfleakd.model.code.method import Method, methods_bytes
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.code_cache import CodeSnapshot, row_at
from bpfleakd.runtimes.jvm.debug_info import DebugInfo, Scope
from bpfleakd.runtimes.jvm.java_method import JavaMethod, MethodReader
from bpfleakd.runtimes.jvm.layout import JvmLayout
from bpfleakd.symbols.bounded_cache import BoundedCache

_ADDRESSES_MAX = 65_536
_METHODS_MAX = 32_768
_BLOB_NAMES_MAX = 4_096
_NAME_MAX_BYTES = 64
# Of all that is stored for a process: a method takes 1 KB or so.
_KNOWN_MAX_BYTES = 16 << 20
# Of a frame whose method is gone, or is not what it was.
_UNNAMED = Method("Java method")
_INTERPRETER = b"Interpreter"
_COMPILED = (b"nmethod", b"native nmethod")

# The blob at an address and its method: what tells code from other code at the same place.
_Code = tuple[int, int]


class JavaNames:
    """Names addresses in the code cache, as of the last `snapshot`."""

    def __init__(self, memory: RemoteMemory, layout: JvmLayout) -> None:
        self._memory = memory
        self._method_at = layout.code.method
        self._const_method_at = layout.method.const_method
        self._debug = DebugInfo(memory, layout.debug) if layout.debug else None
        excludes_zero = layout.debug is not None and layout.debug.is_excluding_zero
        self._reader = MethodReader(memory, layout.method, excludes_zero=excludes_zero)
        self._known: BoundedCache[int, tuple[_Code, tuple[Method, ...]]] = BoundedCache(
            _ADDRESSES_MAX, lambda known: methods_bytes(known[1]), _KNOWN_MAX_BYTES
        )
        self._methods: BoundedCache[tuple[int, int], JavaMethod] = BoundedCache(
            _METHODS_MAX, lambda method: method.held_bytes, _KNOWN_MAX_BYTES
        )
        self._blob_names: BoundedCache[int, bytes] = BoundedCache(_BLOB_NAMES_MAX)
        self._interpreted: BoundedCache[tuple[int, int, int | None], tuple[Method, ...]] = BoundedCache(
            _ADDRESSES_MAX, methods_bytes, _KNOWN_MAX_BYTES
        )
        self.snapshot = CodeSnapshot(())

    def forget(self) -> None:
        """Drop all that is known."""
        for cache in (self._known, self._methods, self._blob_names, self._interpreted):
            cache.clear()

    def find(self, address: int) -> Sequence[Method] | None:
        """The methods at an address (one before where a call returns to); None if that is not known."""
        code = self.snapshot
        row = row_at(code, address)
        known = self._known.get(address)
        if row is None:
            return known[1] if known else None
        key = int(code.blobs[row]), int(code.methods[row])
        if known is not None and known[0] == key:
            return known[1]
        try:
            found = self._read(row, address)
        except (OSError, ValueError):
            return None
        if found is not None:
            self._known.put(address, (key, found))
        return found

    def interpreted(self, frame: ManagedFrame) -> Sequence[Method]:
        """The method of a frame of the interpreter; empty for one that Java leaves out of stacks."""
        key = frame.object_address, frame.check, frame.position
        known = self._interpreted.get(key)
        if known is not None:
            return known
        method = self.method(frame.object_address)
        if method is None or check_of(method.check) != frame.check or not method.has(frame.position):
            return (_UNNAMED,)
        found = () if method.is_hidden else (shown(method, (frame.position or 0) - method.code),)
        self._interpreted.put(key, found)
        return found

    def method(self, address: int) -> JavaMethod | None:
        """The method at an address, as it is now; None if there is none."""
        try:
            constant = self._memory.word(address + self._const_method_at)
        except OSError:
            return None
        known = self._methods.get((address, constant))
        if known is None:
            known = self._reader.read(address)
            if known is not None and known.check:
                self._methods.put((address, constant), known)
        return known

    def _read(self, row: int, address: int) -> tuple[Method, ...] | None:
        code = self.snapshot
        blob, method = int(code.blobs[row]), int(code.methods[row])
        kind = self._blob_name(int(code.names[row]))
        if kind not in _COMPILED:
            return (Method(kind.decode()),) if kind == _INTERPRETER else ()
        scopes = self._scopes(blob, address + 1 - int(code.starts[row])) or [Scope(method, -1)]
        methods = [(self.method(scope.method), scope.bytecode_index) for scope in scopes]
        if self._memory.word(blob + self._method_at) != method or any(one is None for one, _at in methods):
            return None  # other code has its place by now
        return tuple(shown(one, index) for one, index in methods if one is not None and not one.is_hidden)

    def _scopes(self, blob: int, offset: int) -> Sequence[Scope]:
        return self._debug.scopes(blob, offset) if self._debug else ()

    def _blob_name(self, address: int) -> bytes:
        known = self._blob_names.get(address)
        if known is None:
            known = self._memory.text(address, _NAME_MAX_BYTES)
            self._blob_names.put(address, known)
        return known


def shown(method: JavaMethod, bytecode_index: int) -> Method:
    """A method as a frame shows it, at an instruction of its bytecode."""
    line = method.line(bytecode_index)
    # A native method has no line.
    return Method(method.name, None, method.file if line else None, line)
