"""V8's code in a process: its places, its unwind rules, and the functions of its frames.

Code is in three places: builtins (with the interpreter) in the file, which has no call frame information for
them; a copy of the builtins; and compiled functions, in memory that V8 reserves around that copy, once for
each worker thread. All of it has frame pointers and the same frames.

The frame of a function has its closure at rbp - 16. There are thousands of short-lived closures, and a
collection of young objects moves them. So the stack walker follows the closure to its SharedFunctionInfo,
which is in the old generation and stands for the function itself. That moves, too, when old memory is
compacted. So each recorded word contains bits of a hash of the function's number in its script, and new ones
are read within a tick. A function that cannot be read is called `JS function`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from bpfleakd.errors import BpfleakdError
from bpfleakd.model.code.managed_frame import ManagedFrame, check_of
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.method import Method, methods_bytes
from bpfleakd.model.code.stack import FrameKind
from bpfleakd.runtimes.v8.code_ranges import code_ranges
from bpfleakd.runtimes.v8.constants import Constants
from bpfleakd.runtimes.v8.functions import FunctionReader, JsFunction
from bpfleakd.runtimes.v8.source_lines import ScriptLines
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.symbols.installed_code import is_installed_script
from bpfleakd.unwind.managed_code import CodeRange, managed_rule

UNREADABLE = Method("JS function")

_FUNCTIONS_MAX = 32_768
_KNOWN_MAX_BYTES = 16 << 20
# Maximum delay until a worker thread's code is found. Reading the mappings takes 0.1 ms, and 1 ms if they
# have changed.
_LOOK_NS = 2_000_000_000
_TAG = 1
_LITERAL_BEHIND_FLAGS = 4

_PACKAGE = re.compile(r"(?<=/node_modules/)((?:@[^/]+/)?[^/]+)/")
_OWN = re.compile(r"node:[\w/.-]+|(?:evalmachine|internal)[\w/.:<>-]*")


class V8Code:
    """The functions of one process, cached by address and check, up to a limit.

    `mappings` reads the mappings of the process. `v8_file` is the path there of the file that V8 is in.
    """

    kind = FrameKind.INTERPRETED

    def __init__(
        self,
        constants: Constants,
        reader: FunctionReader,
        lines: ScriptLines,
        v8_file: str,
        mappings: Callable[[], Sequence[Mapping]],
    ) -> None:
        self._reader = reader
        self._lines = lines
        self._v8_file = v8_file
        self._mappings = mappings
        self._rule = managed_rule(
            constants.frame_function,
            inner_offset=constants.function_shared - _TAG,
            check_offset=constants.shared_flags + _LITERAL_BEHIND_FLAGS - _TAG,
            is_tagged=True,
        )
        self._known: BoundedCache[tuple[int, int], tuple[Method, ...]] = BoundedCache(
            _FUNCTIONS_MAX, methods_bytes, _KNOWN_MAX_BYTES
        )
        self._ranges: Sequence[CodeRange] = ()
        self._look_due_ns = 0

    def ranges(self, now_ns: int) -> Sequence[CodeRange]:
        """The current code ranges."""
        self._lines.refill()
        if now_ns >= self._look_due_ns:
            self._look_due_ns = now_ns + _LOOK_NS
            try:
                found = code_ranges(self._mappings(), self._v8_file)
            except BpfleakdError:
                # It has just ended.
                return self._ranges
            self._ranges = tuple(
                CodeRange(start, end, self._rule, only_gaps=gaps) for start, end, gaps in found
            )
        return self._ranges

    def note(self, frames: Iterable[ManagedFrame]) -> None:
        """Read these functions now: they may move before they are shown."""
        for frame in frames:
            self._function_of(frame)

    def find(self, frame: ManagedFrame) -> Sequence[Method]:
        """The function of a frame, or UNREADABLE."""
        return self._function_of(frame) or (UNREADABLE,)

    def _function_of(self, frame: ManagedFrame) -> tuple[Method, ...] | None:
        key = frame.object_address, frame.check
        known = self._known.get(key)
        if known is None:
            function = self._reader.read(frame.object_address)
            # Another function may have its memory by now.
            if function is None or check_of(function.number) != frame.check:
                return None
            known = (self._method(function),)
            self._known.put(key, known)
        return known

    def _method(self, function: JsFunction) -> Method:
        if function.script is None:
            return Method(function.name, "v8")
        line = None
        if function.source is not None and function.begins is not None:
            line = self._lines.line(function.script, function.source, function.begins)
        script = function.script
        return Method(function.name, module_of(script), file_of(script), line, is_installed_script(script))


def module_of(script: str) -> str:
    """The package of an installed file; `node` for scripts of Node.js itself; else the name of the file."""
    if _OWN.fullmatch(script):
        return "node"
    packages = _PACKAGE.findall(script)
    return packages[-1] if packages else file_of(script)


def file_of(script: str) -> str:
    """The last part of a path or URL; for a module of Node.js, its name."""
    return script if script.startswith("node:") else script.rsplit("/", 1)[-1] or script
