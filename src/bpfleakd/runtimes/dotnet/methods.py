"""Names for the methods of a .NET process, requested when a stack has code without a name.

Rules:
- A look is a rundown in a separate thread: nothing waits for it. There is one at a time. Lines come
  after the names, because opening files may take long.
- The first look is made at once, a later one when code without a name was met. Looks are `_PAUSE_NS` apart,
  and further if the last one gave no name to what was met: stubs have none.
- A process that has just started is not asked: .NET Core 3.1 may lock up if a session ends during its start
  (dotnet/runtime#51579). After several attempts without an answer, no more are made.
- Code that was freed keeps its name until other code takes its place.
"""

from __future__ import annotations

import queue
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter

import structlog
from msgspec import Struct

from bpfleakd.model.address_space import NO_MODULE, JitModule
from bpfleakd.model.code.method import Method
from bpfleakd.runtimes.dotnet.diagnostics import DiagnosticsError
from bpfleakd.runtimes.dotnet.method_look import Methods
from bpfleakd.runtimes.dotnet.source_lines import Lines, LinesOfMethods, LineSource
from bpfleakd.runtimes.dotnet.stream_jobs import CodePart
from bpfleakd.symbols.dotnet_names import assembly_name, method_name
from bpfleakd.symbols.jit_index import JitIndex
from bpfleakd.symbols.jit_modules import JitModules
from bpfleakd.threads import begin_thread
from bpfleakd.turns import Turns

log = structlog.get_logger()

_NS_PER_S = 1_000_000_000
_PAUSE_NS = 30 * _NS_PER_S
_LONGEST_PAUSE_NS = 600 * _NS_PER_S
_FAILURES_MAX = 3
_UNNAMED_MAX = 10_000
_METHODS_MAX = 300_000
# A user whose processes do not answer delays no other user's names.
_LOOKS: Turns[int] = Turns(in_all=16, of_one=4)


class _WithLines(Struct, frozen=True):
    methods: Methods
    lines: LinesOfMethods


class MethodTable:
    """Methods by address, from all looks so far; `compiled` counts those that only later looks found."""

    def __init__(self) -> None:
        self.compiled = JitModules()
        self._index = JitIndex(_METHODS_MAX)
        self._code: list[tuple[CodePart, str]] = []
        self._lines: dict[int, Lines] = {}
        self._known: dict[tuple[int, int, int], int] = {}

    def __len__(self) -> int:
        return len(self._index)

    def add(self, found: Methods) -> None:
        """Add the result of a look, which is newer than all before."""
        if len(self._code) + len(found.code) > 2 * _METHODS_MAX:
            self._index, self._code = JitIndex(_METHODS_MAX), []
            self._lines, self._known = {}, {}
        # The methods of the first look may be old.
        is_first = not self._known
        for code in found.code:
            key = code.start, code.size_bytes, code.id
            if self._known.get(key) is None:
                module = found.modules.get(code.module_id, "")
                if code.is_jitted and not is_first:
                    self.compiled.add([(assembly_name(module) or NO_MODULE, code.size_bytes)])
                self._known[key] = len(self._code)
                self._index.add([(code.start, code.size_bytes, len(self._code))])
                self._code.append((code, module))

    def add_lines(self, found: Methods, lines: LinesOfMethods) -> None:
        """Add the lines of methods that were added before."""
        for place, of_method in lines.items():
            code = found.code[place]
            row = self._known.get((code.start, code.size_bytes, code.id))
            if row is not None:
                self._lines[row] = of_method

    def find(self, address: int) -> Sequence[Method]:
        """The method at an address; empty if there is none."""
        found = self._index.find(address)
        if found is None:
            return ()
        start, _size_bytes, row = found
        code, module = self._code[row]
        line = _line_at(self._lines.get(row, ()), address - start)
        name = method_name(code.namespace, code.name)
        return (Method(name, assembly_name(module) or None, *(line or (None, None))),)


def _line_at(lines: Lines, offset: int) -> tuple[str, int] | None:
    """The prologue, before the first line, belongs to that line."""
    if not lines:
        return None
    _from, file, line = lines[max(0, bisect_right(lines, offset, key=itemgetter(0)) - 1)]
    return file, line


class DotnetMethods:
    """The methods of a process of user `uid`.

    `look` makes a rundown and raises DiagnosticsError, `lines_of` finds lines. `failure` is why there are no
    names, if there are none. `generation` changes when addresses may have new names or lines.
    """

    is_live = False

    def __init__(
        self, look: Callable[[], Methods], lines_of: LineSource, not_before_ns: int, uid: int = 0
    ) -> None:
        self.generation = 0
        self.failure: str | None = None
        self._uid = uid
        self._look = look
        self._lines_of = lines_of
        self._table = MethodTable()
        self._due_ns = self._soonest_ns = not_before_ns
        self._pause_ns = _PAUSE_NS
        self._failures = 0
        self._is_looking = False
        self._finished: queue.SimpleQueue[Methods | _WithLines | DiagnosticsError] = queue.SimpleQueue()
        # Addresses without a name: those before the last look, and those since.
        self._looked_for: set[int] = set()
        self._unnamed: set[int] = set()
        self._is_wanted = True

    def __len__(self) -> int:
        return len(self._table)

    def compiled(self) -> Sequence[JitModule]:
        """The code compiled since the first look, by assembly, as of the last one.

        A call requests another look, as code without a name does.
        """
        self._is_wanted = self._failures < _FAILURES_MAX
        self._due_ns = min(self._due_ns, self._soonest_ns)
        return self._table.compiled.report()

    def refresh(self, now_ns: int) -> None:
        """Process a finished look; start one if it is due."""
        self._take_finished(now_ns)
        is_due = self._is_wanted and not self._is_looking and now_ns >= self._due_ns
        if is_due and _LOOKS.take(self._uid):
            self._is_looking, self._is_wanted = True, False
            self._due_ns, self._soonest_ns = now_ns + self._pause_ns, now_ns + _PAUSE_NS
            self._looked_for = set(self._unnamed)
            begin_thread("dotnet-methods", self._look_once)

    def find(self, address: int) -> Sequence[Method] | None:
        """The method at an address; requests a look for unknown code."""
        found = self._table.find(address)
        if not found and address not in self._unnamed and len(self._unnamed) < _UNNAMED_MAX:
            self._unnamed.add(address)
            self._is_wanted = self._failures < _FAILURES_MAX
        return found or None

    def _look_once(self) -> None:
        found: Methods | DiagnosticsError
        try:
            found = self._look()
        except DiagnosticsError as error:
            found = error
        except Exception as error:
            found = DiagnosticsError(f"its methods cannot be read: {error!r}")
        finally:
            _LOOKS.give_back(self._uid)
        if isinstance(found, DiagnosticsError):
            self._finished.put(found)
            return
        self._finished.put(found)
        lines: LinesOfMethods = {}
        try:
            lines = self._lines_of(found)
        except Exception:
            log.exception("dotnet.no-lines")
        self._finished.put(_WithLines(found, lines))

    def _take_finished(self, now_ns: int) -> None:
        while not self._finished.empty():
            answer = self._finished.get()
            # Lines complete a look.
            self._is_looking = isinstance(answer, Methods)
            if isinstance(answer, Methods):
                self._take(answer)
            elif isinstance(answer, _WithLines):
                self._table.add_lines(answer.methods, answer.lines)
                self.generation += bool(answer.lines)
            else:
                self._note_failure(str(answer), now_ns)

    def _take(self, found: Methods) -> None:
        self._table.add(found)
        self.failure, self._failures = None, 0
        self.generation += 1
        named = {address for address in self._looked_for if self._table.find(address)}
        self._unnamed -= named
        if self._looked_for and not named:
            self._pause_ns = min(2 * self._pause_ns, _LONGEST_PAUSE_NS)
        elif named:
            self._pause_ns = _PAUSE_NS

    def _note_failure(self, failure: str, now_ns: int) -> None:
        self.failure = failure
        self._failures += 1
        self._is_wanted = self._failures < _FAILURES_MAX
        self._due_ns = self._soonest_ns = now_ns + self._failures * _PAUSE_NS
