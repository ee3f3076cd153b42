"""Runtimes that bpfleakd recognises but does not read: their call sites are functions of the interpreter.

A note explains such a list of C functions, and how to get more. The flags named here were tested: Erlang 25,
PHP 8.2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from msgspec import Struct

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.process import ProcessInfo

OTHER = "other"
"""The common name of them all: a process has at most one."""

_DELAYED = "; objects count as live until its garbage collector frees them"


class _Language(Struct, frozen=True):
    """The file names of a language's program, or of its library, and the end of its note."""

    files: str
    more: str = ""
    has_collector: bool = False


# By the name of the program, or of the library if other programs embed the language. Programs that may run
# scripts (an editor with Perl) are not included.
_LANGUAGES = {
    "Bun": _Language(r"bun", has_collector=True),
    "Deno": _Language(r"deno", has_collector=True),
    "Erlang": _Language(
        r"beam(?:\.smp)?",
        "; started with ERL_FLAGS='+JPperf true', it writes a perf map, which names Erlang's",
        has_collector=True,
    ),
    "Lua": _Language(r"lua(?:jit)?[\d.-]*(?:beta\d+)?|libluajit-.*\.so.*", has_collector=True),
    "Mono": _Language(r"mono(?:-sgen)?|libmonosgen-.*\.so.*", has_collector=True),
    "Perl": _Language(r"perl[\d.]*"),
    "PHP": _Language(
        r"php(?:-fpm|-cgi)?[\d.]*|libphp[\d.]*\.so",
        "; PHP allocates chunks of 2 MiB, and their call site is the function that needs the next one;"
        " with USE_ZEND_ALLOC=0 in its environment, each value is a block",
    ),
    "R": _Language(r"libR\.so", has_collector=True),
    "Ruby": _Language(r"ruby[\d.]*", has_collector=True),
    "Tcl": _Language(r"(?:tclsh|wish)[\d.]*"),
}
_PATTERN = re.compile("|".join(f"(?P<{name}>{one.files})" for name, one in _LANGUAGES.items()))


class Unread:
    """One of these runtimes: it only has the note. `version` is the language."""

    name = OTHER
    methods = None
    frames = None
    code_tables = ()
    code = None
    live_heap = None
    allocations = None
    types = None

    def __init__(self, language: str) -> None:
        self.version = language

    @property
    def has_collector(self) -> bool:
        """Whether a garbage collector frees its objects."""
        return _LANGUAGES[self.version].has_collector

    @property
    def notes(self) -> Sequence[str]:
        """What the call sites are, and how to get more."""
        language = _LANGUAGES[self.version]
        more = language.more + (_DELAYED if language.has_collector else "")
        return (f"bpfleakd does not read {self.version}: call sites are functions of its runtime{more}",)

    def close(self) -> None:
        """Do nothing."""


def detect_unread(process: ProcessInfo, mappings: Sequence[Mapping]) -> Unread | None:
    """The first of these languages that a process runs; None if it runs none."""
    paths = (process.exe, *(mapping.path for mapping in mappings if mapping.executable))
    for name in dict.fromkeys(map(os.path.basename, paths)):
        found = _PATTERN.fullmatch(name)
        if found is not None and found.lastgroup is not None:
            return Unread(found.lastgroup)
    return None
