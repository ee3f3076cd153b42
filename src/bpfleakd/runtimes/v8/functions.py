"""JavaScript functions: name, file and line, from a SharedFunctionInfo.

V8 has one for each function of a script, shared by all its closures and compilation tiers. It is only
accepted if its script's list of functions contains it at its stated number. Functions of V8 itself have no
script, and the number of a builtin in place of code. The line is the function's first.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from bpfleakd.printable import printable, shortened
from bpfleakd.runtimes.v8.heap_objects import SMI_SHIFT, HeapObjects, is_object, is_small_integer

_NAME_SHOWN, _FILE_SHOWN = 256, 1024
_WORD_BYTES = 8
# In a SharedFunctionInfo the number of the function follows the flags (shared-function-info.tq).
_LITERAL_BEHIND_FLAGS = 4
_SCRIPT_WORDS = 20
_WEAK_MASK = ~2
# A ScopeInfo contains the names of up to this many variables; more are in a table.
_SCOPE_LOCALS_INSIDE = 75
_SCOPE_TAIL_WORDS = 8


class JsFunction(Struct, frozen=True):
    """A function: `script` is the file or URL, None for V8's own, and `source` the script's text.

    `begins` is the position of the character where its parameters begin, None if unknown. `number` is its
    number in the script.
    """

    name: str
    script: str | None
    source: int | None
    begins: int | None
    number: int


class FunctionReader:
    """Reads functions by the pointer to their SharedFunctionInfo."""

    def __init__(self, heap: HeapObjects) -> None:
        self._heap = heap

    def number(self, shared: int) -> int:
        """The number of the function in its script, as 4 bytes. Raises OSError or ValueError."""
        return self._heap.number(shared, self._heap.constants.shared_flags + _LITERAL_BEHIND_FLAGS)

    def read(self, shared: int) -> JsFunction | None:
        """The function; None if there is none, or if it is not accepted."""
        try:
            return self._read(shared)
        except (OSError, ValueError):
            return None

    def _read(self, shared: int) -> JsFunction | None:
        heap, constants = self._heap, self._heap.constants
        if heap.type_of(shared) != constants.type_shared:
            return None
        number = self.number(shared)
        script = heap.word(shared, constants.shared_script)
        name, begins = self._name(heap.word(shared, constants.shared_name))
        if not is_object(script) or heap.type_of(script) != constants.type_script:
            is_builtin = is_small_integer(heap.word(shared, constants.shared_data))
            return JsFunction(name, None, None, None, number) if is_builtin and name else None
        if not self._is_listed(script, number, shared):
            return None
        source = heap.word(script, constants.script_source)
        if begins is not None and begins > heap.length(source):
            return None
        path = self._script_name(heap.word(script, constants.script_name))
        return JsFunction(
            name or ("(module)" if number == 0 else "(anonymous)"), path, source, begins, number
        )

    def _is_listed(self, script: int, number: int, shared: int) -> bool:
        heap, constants = self._heap, self._heap.constants
        for field in range(1, _SCRIPT_WORDS):
            functions = heap.word(script, field * _WORD_BYTES)
            if is_object(functions) and heap.type_of(functions) == constants.type_weak_array:
                count = heap.word(functions, _WORD_BYTES) >> SMI_SHIFT
                if not number < count:
                    return False
                # The length precedes the elements, as in any array.
                found = heap.word(functions, constants.array_data + number * _WORD_BYTES)
                return found & _WEAK_MASK == shared
        return False

    def _script_name(self, name: int) -> str:
        if not is_object(name) or not self._heap.is_text(self._heap.type_of(name)):
            return "(no file)"
        return shortened(printable(self._heap.text(name, _FILE_SHOWN)), _FILE_SHOWN)

    def _name(self, name: int) -> tuple[str, int | None]:
        """The name, "" if it has none, and where the function begins. Raises OSError or ValueError."""
        heap = self._heap
        if not is_object(name):
            # A small integer means that it has no name.
            return "", None
        type_ = heap.type_of(name)
        if heap.is_text(type_):
            return self._text(name), None
        if type_ != heap.constants.type_scope:
            raise ValueError("neither a name nor a scope")
        return self._in_scope(name)

    def _in_scope(self, scope: int) -> tuple[str, int | None]:
        """The name and the beginning of the function, from its scope.

        After a scope's variables there may be a name with its slot and an inferred name, and then there are
        two numbers: where the function begins, and where it ends (ScopeInfo in scope-info.tq).
        """
        heap, constants = self._heap, self._heap.constants
        locals_ = heap.word(scope, (constants.scope_locals + 1) * _WORD_BYTES) >> SMI_SHIFT
        if locals_ > 1 << 16:
            raise ValueError(f"{locals_} variables")
        names = locals_ if locals_ <= _SCOPE_LOCALS_INSIDE else 1
        first = (constants.scope_first + 1 + names + locals_) * _WORD_BYTES
        data = heap.read(scope, first, _SCOPE_TAIL_WORDS * _WORD_BYTES)
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
        texts: list[str] = []
        for word, after in pairwise(words):
            is_position = is_small_integer(word) and is_small_integer(after) and word <= after
            if is_position and word >> SMI_SHIFT < 1 << 31:
                # The first is the name. V8 has inferred the second, from a loop's variable for instance.
                return texts[0] if texts else "", word >> SMI_SHIFT
            if is_object(word) and heap.is_text(heap.type_of(word)):
                texts.append(self._text(word))
        raise ValueError("a scope without a beginning")

    def _text(self, text: int) -> str:
        return shortened(printable(self._heap.text(text, _NAME_SHOWN)), _NAME_SHOWN)
