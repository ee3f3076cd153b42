"""Methods compiled at run time, by the module that they belong to.

A program that generates assemblies, scripts or classes over and over leaks their code, which no allocator
knows of. The names in its perf map say where they come from:

    void [System.Private.CoreLib] System.IO.Path::Join(…)[Tier0]        .NET: the assembly
    stub<7> GenerateResolveStub<GenerateResolveStub>                    .NET's stubs
    LazyCompile:*leak /srv/app.js:3:14, JS:~leak file:///srv/app.js     Node.js: the script
    int java.lang.String.hashCode(), java.lang.String::hashCode         Java: the package (or class)
    py::leak:/srv/app.py                                                Python: the file
    LeakyTemplate::render                                               others: what is before the last ::
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bpfleakd.analysis.managed_code import is_dotnet_stub
from bpfleakd.model.address_space import JitModule
from bpfleakd.model.code.method import dotnet_assembly

__all__ = ["OTHER_MODULES", "STUBS", "JitModules", "module_of"]

# Where the modules beyond the limit are counted, .NET's stubs, and the methods without a module.
OTHER_MODULES = "(others)"
STUBS = "(stubs)"
_NO_MODULE = "(no module)"
_MODULES_MAX = 10_000

_V8 = re.compile(r"\w+:[*~^+]?[^ ]* (?:file://)?(.+?):\d+:\d+")
_PYTHON = re.compile(r"py::[^:]*:(.+)")
_JAVA = re.compile(r"(?:[\w$.\[\]]+ )?((?:[\w$]+\.)*)([\w$/+]+)(?:\.|::)[\w$<>]+(?:\(.*)?")


class JitModules:
    """Sums by module, for at most `modules_max` modules."""

    def __init__(self, modules_max: int = _MODULES_MAX) -> None:
        self._modules_max = modules_max
        self._sums: dict[str, tuple[int, int]] = {}

    def add(self, methods: Iterable[tuple[str, int]]) -> None:
        """Count methods, each a name of a perf map and the size of its code."""
        for name, size_bytes in methods:
            module = module_of(name)
            if module not in self._sums and len(self._sums) >= self._modules_max:
                module = OTHER_MODULES
            count, total_bytes = self._sums.get(module, (0, 0))
            self._sums[module] = (count + 1, total_bytes + size_bytes)

    def clear(self) -> None:
        """Begin again."""
        self._sums.clear()

    def report(self) -> tuple[JitModule, ...]:
        """All modules, those with the most code first."""
        ordered = sorted(self._sums.items(), key=lambda item: (-item[1][1], item[0]))
        return tuple(JitModule(module, *sums) for module, sums in ordered)


def module_of(name: str) -> str:
    """The module of a method, by its name in a perf map."""
    for pattern in (_PYTHON, _V8):
        if found := pattern.fullmatch(name):
            return found[1]
    if assembly := dotnet_assembly(name):
        return assembly
    if is_dotnet_stub(name):
        return STUBS
    if found := _JAVA.fullmatch(name):
        return found[1].rstrip(".") or found[2]
    scope, colons, _method = name.partition("(")[0].rpartition("::")
    return scope if colons and scope else _NO_MODULE
